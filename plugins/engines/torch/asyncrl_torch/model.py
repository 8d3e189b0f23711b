"""A Hugging Face causal language model as the batcher uses it: prefill some rows, decode one token for every row.

Masks, positions and the cache are passed in explicitly, which any decoder with ordinary attention accepts; that it does so rightly is
tried once at start-up against the model's plain forward pass.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.cache_utils import DynamicCache
from transformers.utils import logging

from asyncrl_torch.attention import use_decode_attention
from asyncrl_torch.cache import SlotCache, rounded
from asyncrl_torch.norms import fuse_norms
from asyncrl_torch.requests import Limits


class UnsupportedModel(Exception):
    """The model can't be served by this engine; the message says why."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens to compute keys and values of, from position `start` on, in cache row `row`."""

    row: int
    start: int
    tokens: Sequence[int]


def load_model(path: Path, device: torch.device, dtype: torch.dtype) -> torch.nn.Module:
    """Return the model of a Hugging Face directory, in evaluation mode. Raises `UnsupportedModel`."""
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        model = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, trust_remote_code=False, local_files_only=True, use_safetensors=True
        )
    except (OSError, ValueError, KeyError, RuntimeError) as cause:
        if "trust_remote_code" in str(cause):
            raise UnsupportedModel(f"{path} needs code of its own, which is never run: trust_remote_code is off") from None
        raise UnsupportedModel(f"{path} could not be loaded: {cause}") from cause
    model = model.to(device).eval()
    fuse_norms(model)
    use_decode_attention(model)
    return model


def model_limits(model: Any, path: Path, max_context: int) -> Limits:
    """Return vocabulary, context (0 asks for the model's own) and end-of-sequence ids."""
    config = model.config.get_text_config()
    own = int(getattr(config, "max_position_embeddings", 0) or getattr(config, "n_positions", 0) or 2048)
    if max_context > own:
        raise UnsupportedModel(f"max_context {max_context} is more than the model's {own} positions")
    eos = model.config.eos_token_id
    if (path / "generation_config.json").is_file():
        eos = GenerationConfig.from_pretrained(path, local_files_only=True).eos_token_id or eos
    ids = [] if eos is None else [eos] if isinstance(eos, int) else list(eos)
    # the embedding may be padded beyond the tokenizer's vocabulary; its rows are what an id must not exceed
    return Limits(model.get_input_embeddings().weight.shape[0], max_context or own, frozenset(ids))


class ModelRunner:
    """Runs the model over a `SlotCache`.

    Args:
        model: from `load_model`.
        max_context: longest sequence.
        prefill_tokens: at most this many (padded) tokens go through one prefill pass, so that decoding gets its turn.
    """

    def __init__(self, model: Any, max_context: int, prefill_tokens: int = 4096) -> None:
        self.model = model
        self.device = model.device
        self._prefill_tokens = prefill_tokens
        self._max_length = rounded(max_context)
        accepted = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in accepted else "past_key_values"
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
        config = model.config.get_text_config()
        self._last_position = int(getattr(config, "max_position_embeddings", 0) or max_context) - 1
        kinds = set(getattr(config, "layer_types", None) or ())
        if unknown := kinds - {"full_attention", "sliding_attention"}:
            raise UnsupportedModel(
                f"{type(model).__name__} has layers of another kind than attention: {', '.join(sorted(unknown))}"
            )
        window = getattr(config, "sliding_window", None)
        self._window = window if window and (not kinds or "sliding_attention" in kinds) else 0
        self._masks_by_kind = "sliding_attention" in kinds
        self._columns = torch.arange(self._max_length, device=self.device)
        self._open, self._shut = torch.tensor([0.0, float("-inf")], dtype=model.dtype, device=self.device)
        self.cache = self._make_cache()
        self._try_out()

    @torch.inference_mode()
    def prefill(self, pieces: Sequence[Piece]) -> None:
        """Compute keys and values of the pieces, one for each of some consecutive rows, in order; a piece may be empty. What lies
        before each piece must be in the cache already."""
        chunk: list[Piece] = []
        width = 0
        for piece in pieces:
            if not chunk and not piece.tokens:
                continue
            if chunk and max(width, len(piece.tokens)) * (len(chunk) + 1) > self._prefill_tokens:
                self._prefill_pass(chunk)
                chunk, width = [], 0
                if not piece.tokens:
                    continue
            chunk.append(piece)
            width = max(width, len(piece.tokens))
        if chunk:
            self._prefill_pass(chunk)

    def _prefill_pass(self, pieces: Sequence[Piece]) -> None:
        # padding is written behind the end of its row, where it is overwritten before anything attends to it
        width = max(len(piece.tokens) for piece in pieces)
        ids = [[*piece.tokens, *[0] * (width - len(piece.tokens))] for piece in pieces]
        starts = torch.tensor([piece.start for piece in pieces], device=self.device)
        positions = starts[:, None] + torch.arange(width, device=self.device)
        first = pieces[0].row
        self.cache.reserve(first + len(pieces), max(piece.start for piece in pieces) + width)
        length = rounded(max(piece.start + len(piece.tokens) for piece in pieces))
        self._forward(torch.tensor(ids, device=self.device), positions, first, length)

    @torch.inference_mode()
    def decode(self, tokens: torch.Tensor, positions: torch.Tensor, longest: int) -> torch.Tensor:
        """Return float32[rows, vocabulary] logits after one more token in each of rows 0 to n-1.

        Args:
            tokens, positions: int64[rows, 1].
            longest: the largest position plus one.
        """
        length = rounded(longest)
        self.cache.reserve(len(tokens), length)
        return self._forward(tokens, positions, 0, length)[:, -1].float()

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor, first: int, length: int) -> torch.Tensor:
        self.cache.open_window(first, len(ids), length, positions)
        columns = self._columns[:length]
        visible = columns <= positions[:, None, :, None]
        mask: Any
        if self._window:
            near = visible & (columns > positions[:, None, :, None] - self._window)
            sliding = torch.where(near, self._open, self._shut)
            mask = sliding
            if self._masks_by_kind:
                mask = {"full_attention": torch.where(visible, self._open, self._shut), "sliding_attention": sliding}
        else:
            mask = torch.where(visible, self._open, self._shut)
        output = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions.clamp(max=self._last_position) if ids.shape[1] > 1 else positions,
            use_cache=True,
            **{self._cache_name: self.cache},
            **self._last_only,
        )
        return output.logits

    @torch.inference_mode()
    def _make_cache(self) -> SlotCache:
        probe = DynamicCache()
        self.model(input_ids=torch.zeros(1, 2, dtype=torch.long, device=self.device), use_cache=True, **{self._cache_name: probe})
        shapes = {(layer.keys.shape[1::2], layer.values.shape[1::2]) for layer in probe.layers}
        if len(shapes) != 1:
            raise UnsupportedModel(f"{type(self.model).__name__} has layers with differently shaped caches")
        keys, values = shapes.pop()
        return SlotCache(len(probe.layers), tuple(keys), tuple(values), probe.layers[0].keys.dtype, self.device)

    @torch.inference_mode()
    def _try_out(self) -> None:
        """Generate logits for a short sequence through the cache, in a batch of two lengths, and compare with the plain pass."""
        vocab = self.model.get_input_embeddings().weight.shape[0]
        tokens = [(7 * place + 3) % vocab for place in range(8)]
        want = self.model(input_ids=torch.tensor([tokens], device=self.device)).logits[0].float()
        try:
            self.prefill([Piece(0, 0, tokens[:5]), Piece(1, 0, tokens[:3])])
            self.prefill([Piece(0, 5, tokens[5:7]), Piece(1, 3, ())])
            got = self.decode(
                torch.tensor([[tokens[7]], [tokens[3]]], device=self.device), torch.tensor([[7], [3]], device=self.device), 8
            )
        except Exception as cause:
            raise UnsupportedModel(f"{type(self.model).__name__} does not take this engine's cache: {cause}") from cause
        far = float((got - want[[7, 3]]).abs().max()) / (1 + float(want.abs().max()))
        if not far < (1e-3 if self.model.dtype == torch.float32 else 0.1):
            raise UnsupportedModel(
                f"{type(self.model).__name__} gives other logits through this engine's cache than in a plain forward pass"
                f" (relative difference {far:.2g})"
            )

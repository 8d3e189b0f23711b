"""The policy: a plain Hugging Face causal LM, wrapped so that only the log-probabilities that are needed are ever computed."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from asyncrl import DataError
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

LOGITS_AT_ONCE = 2**26
"""Elements of the logits (tokens x vocabulary) that exist at a time: 256 MB in float32. Above, they are recomputed in the backward pass."""

_SCALED_HEADS = {"final_logit_softcapping": (None,), "logit_scale": (None, 1), "logits_scaling": (None, 1)}
"""Config entries that change logits behind the head, with the values under which they do nothing."""


class Policy(nn.Module):
    """Log-probabilities of chosen tokens under a causal LM.

    `forward(input_ids, positions, targets, temperature)`:
        input_ids: int64[rows, width], padded on the right.
        positions: int64[n], flat indices into `input_ids`.
        targets: int64[n], the token that follows each position.
        temperature: by which logits are divided.
    returns (logprobs float32[n] in nats, entropy float32[n] without gradient).
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, positions: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        states = self.model.get_decoder()(input_ids=input_ids, use_cache=False).last_hidden_state
        states = states.flatten(0, 1)[positions]
        head = self.model.get_output_embeddings()
        at_once = max(1, LOGITS_AT_ONCE // self.model.config.get_text_config().vocab_size)
        if len(targets) <= at_once:
            return _score(head, states, targets, temperature)
        parts = [
            checkpoint(_score, head, state, target, temperature, use_reentrant=False)
            for state, target in zip(states.split(at_once), targets.split(at_once), strict=True)
        ]
        return torch.cat([logprobs for logprobs, _ in parts]), torch.cat([entropy for _, entropy in parts])


def _score(head: nn.Module, states: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    logits = head(states).float()
    if temperature != 1.0:
        logits = logits / temperature
    logprobs = torch.log_softmax(logits, dim=-1)
    with torch.no_grad():
        entropy = -(logprobs.exp() * logprobs).sum(-1)
    chosen = logprobs.gather(-1, targets[:, None]).squeeze(-1)
    return chosen.clone(), entropy  # FSDP2 wants no view as a module's output


def load_policy(directory: Path, *, activation_checkpointing: bool) -> Policy:
    """Load a Hugging Face directory in float32, without dropout. Raises `DataError`."""
    if not (directory / "config.json").is_file():
        raise DataError(f"no Hugging Face model at {directory}", origin="model", remedy="name a directory with config.json")
    transformers_logging.disable_progress_bar()
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, trust_remote_code=False, local_files_only=True, use_safetensors=True
        )
    except (OSError, ValueError, RuntimeError) as cause:
        if "trust_remote_code" in str(cause):
            raise DataError(
                f"the model at {directory} needs code of its own, which is never run: trust_remote_code is off",
                origin="model",
                remedy="name a model that transformers knows by itself",
            ) from None
        raise DataError(f"can't load the model at {directory}: {cause}", origin="model") from cause
    for entry, harmless in _SCALED_HEADS.items():
        value = getattr(model.config.get_text_config(), entry, None)
        if value not in harmless:
            raise DataError(
                f"the model at {directory} has {entry} = {value}, which this trainer does not compute", origin="model"
            )
    model.eval()  # dropout would make a token's probability differ from the one it was generated with
    if activation_checkpointing:
        for block in blocks(model):
            # In place of the block's own forward, so that FSDP2's hooks stay outside and run once.
            block.forward = partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False)
    return Policy(model)


def blocks(model: nn.Module) -> nn.ModuleList:
    """Return the model's transformer blocks."""
    layers = model.config.get_text_config().num_hidden_layers
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == layers:
            return module
    raise DataError(f"{type(model).__name__} has no list of {layers} blocks to shard", origin="model")

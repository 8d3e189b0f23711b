"""Models that are served: the demo's, and ones of its shape with weights so random that every context gives other tokens."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from asyncrl.samples import Completion
from greedy_tokens import check_greedy
from transformers import DynamicCache, Qwen3ForCausalLM
from transformers.utils import logging as transformers_logging

transformers_logging.disable_progress_bar()
torch.set_num_threads(1)
POSITIONS = 4096


def without_end(model: Path, folder: Path) -> Path:
    """Copy a model so that it never ends by itself and may write `POSITIONS` tokens."""
    shutil.copytree(model, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": None, "max_position_embeddings": POSITIONS}))
    (folder / "generation_config.json").unlink()
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    tokenizer.pop("eos_token")
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    return folder


def randomized(model: Path, folder: Path, seed: int) -> Path:
    """Copy a model with random weights."""
    shutil.copytree(model, folder)
    made = load(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.2, generator=generator)
    made.save_pretrained(folder)
    return folder


def load(model: Path) -> Qwen3ForCausalLM:
    return Qwen3ForCausalLM.from_pretrained(model, dtype=torch.float32).eval()


def logprobs(model: Any, prompt: list[int], output: list[int], temperature: float = 1.0) -> torch.Tensor:
    """float32[output, vocabulary] log-probabilities of a forward pass over prompt and output."""
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1].float()
    return torch.log_softmax(logits / temperature, dim=-1)


def logprobs_on_an_old_cache(old: Any, new: Any, head: list[int], output: list[int]) -> torch.Tensor:
    """Like `logprobs` of `new`, behind keys and values that `old` computed for all of `head` but its last token."""
    cache = DynamicCache(config=old.config)
    with torch.inference_mode():
        old(torch.tensor([head[:-1]]), cache=cache)
        logits = new(torch.tensor([[head[-1], *output[:-1]]]), cache=cache).logits[0]
    return torch.log_softmax(logits.float(), dim=-1)


def check_answer(answer: Completion, rows: torch.Tensor, begin: int = 0) -> None:
    """Fail unless an answer's tokens from `begin` on are greedy under these log-probabilities, and came with them.

    Args:
        rows: float32[tokens from begin on, vocabulary], of a forward pass over the answer's own tokens.
    """
    end = begin + len(rows)
    tokens = answer.token_ids[begin:end].tolist()
    check_greedy(rows, tokens)
    difference = np.abs(answer.logprobs[begin:end] - rows[range(len(tokens)), tokens].numpy())
    assert difference.max() < 1e-4

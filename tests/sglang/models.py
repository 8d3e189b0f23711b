"""Models that are served: the demo's, and ones of its shape with weights so random that every context gives other tokens."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
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


def greedy(model: Any, prompt: list[int], count: int) -> list[int]:
    """The model's own greedy tokens."""
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),  # token 0 pads nothing here
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    return list(output[0, len(prompt) :].tolist())


def logprobs(model: Any, prompt: list[int], output: list[int], temperature: float = 1.0) -> torch.Tensor:
    """float32[output, vocabulary] log-probabilities of a forward pass over prompt and output."""
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1].float()
    return torch.log_softmax(logits / temperature, dim=-1)


def likeliest(model: Any, prompt: list[int], output: list[int]) -> list[int]:
    """The likeliest token at each place of an output, given what stands before it: the output itself, if it was greedy."""
    return list(logprobs(model, prompt, output).argmax(-1).tolist())


def likeliest_on_an_old_cache(old: Any, new: Any, head: list[int], output: list[int]) -> list[int]:
    """Like `likeliest` of `new`, behind keys and values that `old` computed for all of `head` but its last token."""
    cache = DynamicCache(config=old.config)
    with torch.inference_mode():
        old(torch.tensor([head[:-1]]), cache=cache)
        logits = new(torch.tensor([[head[-1], *output[:-1]]]), cache=cache).logits[0]
    return list(logits.argmax(-1).tolist())

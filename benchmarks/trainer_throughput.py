"""Trainer `fsdp` against a bare PyTorch loop doing the same maths, on the demo's model and batch shape. Both take turns, step by step.

The loop is what one would write by hand: one padded forward pass, PPO clip on the engine's log-probabilities, token mean, gradient clip,
AdamW; no metrics, no micro-batches, no check. The trainer does its whole step, metrics included.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from asyncrl import RunFacts, TrainerPlace, TrainingBatch
from asyncrl.training.publication import free_port
from asyncrl_fsdp import FsdpOptions, FsdpTrainer
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

GROUPS, GROUP_SIZE = 16, 16
WARM_UP, RUNS = 3, 15
GOAL = 0.9
VOCABULARY = 64


def run() -> list[dict[str, Any]]:
    """Return one row: the trainer's tokens/s over the bare loop's, median of the turns."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="asyncrl-bench-") as folder:
        make_model(Path(folder))
        trainer = open_trainer(Path(folder))
        try:
            loop = BareLoop(Path(folder))
            ratios = [one_turn(trainer, loop, seed) for seed in range(WARM_UP + RUNS)][WARM_UP:]
        finally:
            trainer.trainer_close()
    return [
        {
            "name": "trainer_tokens_per_second",
            "ratio": statistics.median(ratios),
            "goal": GOAL,
            "unit": "x tokens/s",
            "runs": RUNS,
            "against": "a bare PyTorch loop on the same model and batches",
        }
    ]


def one_turn(trainer: FsdpTrainer, loop: BareLoop, seed: int) -> float:
    """Train both on one batch, taking turns at going first; return the loop's seconds over the trainer's."""
    batch = make_batch(seed)
    seconds: dict[str, float] = {}
    for name in ("trainer", "loop") if seed % 2 else ("loop", "trainer"):
        began = time.perf_counter()
        if name == "trainer":
            trainer.train_batch(batch)
        else:
            loop.step(batch)
        seconds[name] = time.perf_counter() - began
    print(f"turn {seed}: trainer {seconds['trainer'] * 1e3:.0f} ms, bare loop {seconds['loop'] * 1e3:.0f} ms", flush=True)
    return seconds["loop"] / seconds["trainer"]


class BareLoop:
    """The loop to beat."""

    def __init__(self, model: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.0)

    def step(self, batch: TrainingBatch) -> None:
        cuts = batch.starts[1:-1]
        ids, engine, mask = (
            pad_sequence([torch.from_numpy(part) for part in np.split(flat, cuts)], batch_first=True)
            for flat in (batch.token_ids.astype(np.int64), batch.logprobs, batch.loss_mask)
        )
        rewards = torch.from_numpy(batch.rewards).view(-1, GROUP_SIZE)
        advantages = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-6)).view(-1, 1)
        logits = self.model(input_ids=ids, use_cache=False).logits[:, :-1].float()
        logprobs = torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None]).squeeze(-1)
        ratio = torch.exp(logprobs - engine[:, 1:])
        losses = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.28) * advantages)
        (losses[mask[:, 1:]].sum() / batch.num_response_tokens).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


def make_model(directory: Path) -> None:
    """Write the demo's architecture with random weights."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        tie_word_embeddings=True,
        max_position_embeddings=256,
        initializer_range=0.05,
    )
    Qwen3ForCausalLM(config).save_pretrained(directory)


def make_batch(seed: int) -> TrainingBatch:
    """Draw a batch of the demo's lengths: prompts of 5 to 7 tokens, completions of 3 to 7."""
    rng = np.random.default_rng(seed)
    prompts = np.repeat(rng.integers(5, 8, GROUPS), GROUP_SIZE)
    lengths = prompts + np.clip(prompts - 1 + rng.integers(-1, 2, len(prompts)), 3, 7)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    offsets = np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)
    generated = offsets >= np.repeat(prompts, lengths)
    return TrainingBatch(
        version=1,
        step=seed + 1,
        token_ids=rng.integers(3, 56, starts[-1]).astype(np.int32),
        starts=starts.astype(np.int64),
        prompt_lengths=prompts.astype(np.int32),
        loss_mask=generated,
        logprobs=np.where(generated, -np.log(VOCABULARY), 0).astype(np.float32),
        versions=np.where(generated, 1, -1).astype(np.int32),
        rewards=rng.integers(0, 2, len(lengths)).astype(np.float32),
        groups=np.repeat(np.arange(GROUPS), GROUP_SIZE).astype(np.int32),
        prompt_ids=np.arange(GROUPS),
        num_response_tokens=int(generated.sum()),
        temperature=1.0,
        max_new_tokens=7,
    )


def open_trainer(model: Path) -> FsdpTrainer:
    """Open the trainer with the demo's options on one rank."""
    facts = RunFacts(GROUPS, GROUP_SIZE, GROUPS * GROUP_SIZE, steps=WARM_UP + RUNS)
    trainer = FsdpTrainer(FsdpOptions(old_policy="engine", learning_rate=1e-4), facts)
    trainer.trainer_open(
        TrainerPlace(
            rank=0,
            world_size=1,
            local_rank=0,
            master_address="127.0.0.1",
            master_port=free_port("127.0.0.1"),
            device="cpu",
            model=model,
            publish_dtype="float32",
            steps=WARM_UP + RUNS,
            seed=0,
            timeout=60.0,
        )
    )
    return trainer


if __name__ == "__main__":
    print(run())

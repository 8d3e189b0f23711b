"""A tiny model, batches drawn from it, and open trainers, for the tests of this plugin."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from asyncrl import RunFacts, TrainerPlace, TrainingBatch
from asyncrl.training.publication import free_port
from asyncrl_fsdp import FsdpOptions, FsdpTrainer
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging as transformers_logging

torch.set_num_threads(1)
transformers_logging.disable_progress_bar()
FACTS = RunFacts(batch_size=4, group_size=4, max_concurrent_samples=16, steps=10, synchronous=True)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face directory of a Qwen3 of some 70,000 float32 parameters with tied embeddings."""
    directory = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=64,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=12,
        tie_word_embeddings=True,
        max_position_embeddings=256,
        initializer_range=0.2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    Qwen3ForCausalLM(config).save_pretrained(directory)
    (directory / "tokenizer.json").write_text(json.dumps({"stands": "for a tokenizer"}))
    return directory


@pytest.fixture(scope="session")
def make_batch(tiny_model: Path) -> Callable[..., TrainingBatch]:
    """Return a function that draws a batch of unequal lengths and ages whose log-probabilities are near the tiny model's."""
    model = Qwen3ForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()

    def make(
        seed: int = 0, groups: int = 4, group_size: int = 4, noise: float = 0.2, ages: int = 3, version: int = 7
    ) -> TrainingBatch:
        rng = np.random.default_rng(seed)
        samples, prompts, logprobs, versions = [], [], [], []
        for _ in range(groups):
            prompt = rng.integers(3, 60, rng.integers(2, 7))
            for _ in range(group_size):
                response = rng.integers(3, 60, rng.integers(1, 12))
                ids = np.concatenate([prompt, response])
                with torch.no_grad():
                    scores = torch.log_softmax(model(torch.from_numpy(ids)[None]).logits[0], -1)
                own = scores[torch.arange(len(ids) - 1), torch.from_numpy(ids[1:])].numpy()[len(prompt) - 1 :]
                samples.append(ids)
                prompts.append(len(prompt))
                logprobs.append(np.concatenate([np.zeros(len(prompt)), own + noise * rng.standard_normal(len(own))]))
                age = int(rng.integers(0, ages))
                versions.append(np.concatenate([np.full(len(prompt), -1), np.full(len(response), version - age)]))
        starts = np.concatenate([[0], np.cumsum([len(ids) for ids in samples])])
        return TrainingBatch(
            version=version,
            step=1,
            token_ids=np.concatenate(samples).astype(np.int32),
            starts=starts.astype(np.int64),
            prompt_lengths=np.array(prompts, dtype=np.int32),
            loss_mask=np.concatenate(versions) >= 0,
            logprobs=np.concatenate(logprobs).astype(np.float32),
            versions=np.concatenate(versions).astype(np.int32),
            rewards=rng.integers(0, 2, len(samples)).astype(np.float32),
            groups=np.repeat(np.arange(groups), group_size).astype(np.int32),
            prompt_ids=np.arange(groups, dtype=np.int64),
            num_response_tokens=int((np.concatenate(versions) >= 0).sum()),
            temperature=1.0,
            max_new_tokens=12,
        )

    return make


@pytest.fixture
def open_trainer(tiny_model: Path) -> Iterator[Callable[..., FsdpTrainer]]:
    """Return a function that opens a trainer of one rank in this process, closing the one before it."""
    opened: list[FsdpTrainer] = []

    def close() -> None:
        while opened:
            opened.pop().trainer_close()

    def open_(model: Path = tiny_model, publish_dtype: str = "float32", **options: Any) -> FsdpTrainer:
        close()
        trainer = FsdpTrainer(FsdpOptions(**{"learning_rate": 1e-3, "warmup_steps": 0, **options}), FACTS)
        opened.append(trainer)
        trainer.trainer_open(
            TrainerPlace(
                rank=0,
                world_size=1,
                local_rank=0,
                master_address="127.0.0.1",
                master_port=free_port("127.0.0.1"),
                device="cpu",
                model=model,
                publish_dtype=publish_dtype,
                steps=10,
                seed=0,
                timeout=60.0,
            )
        )
        return trainer

    yield open_
    close()


@pytest.fixture(scope="session")
def run_ranks(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[dict[str, Any]]]:
    """Return a function that runs jobs (see `rank_worker.py`) on real processes, one a rank, and returns rank 0's answers."""

    def run(ranks: int, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        directory = tmp_path_factory.mktemp("ranks")
        (directory / "jobs.pickle").write_bytes(pickle.dumps((str(tiny_model), jobs)))
        worker = Path(__file__).with_name("rank_worker.py")
        command = [sys.executable, "-X", "faulthandler", str(worker), str(directory)]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        with ExitStack() as stack:
            logs = [stack.enter_context((directory / f"log-{rank}").open("w+")) for rank in range(ranks)]
            processes = [
                stack.enter_context(subprocess.Popen([*command, str(rank), str(ranks)], env=env, stderr=log))
                for rank, log in enumerate(logs)
            ]
            try:
                codes = [process.wait(timeout=240) for process in processes]
            finally:
                for process in processes:
                    process.kill()
        assert codes == [0] * ranks, [(directory / f"log-{rank}").read_text() for rank in range(ranks)]
        answers = [pickle.loads((directory / f"answers-{rank}.pickle").read_bytes()) for rank in range(ranks)]
        for other in answers[1:]:
            assert other == answers[0], "every rank must report the same"
        return answers[0]

    return run

"""One trainer rank in a process of its own: `python rank_worker.py DIRECTORY RANK RANKS` runs the jobs of `jobs.pickle` in turn.

A job is {options, actions} and, where it is not the usual one, model; an action is (hook's name, or that of a function here, and its
argument or a tuple of several). The answers go to `answers-RANK.pickle`.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from asyncrl import RunFacts, StepReport, TrainerPlace, TrainingBatch, WeightGroup
from asyncrl.errors import PublicationError
from asyncrl.training.publication import free_port
from asyncrl_fsdp import FsdpOptions, FsdpTrainer


def meeting_port(file: Path, rank: int) -> int:
    """Where the ranks meet: picked by rank 0 when it is about to listen, for a port does not stay free."""
    if rank == 0:
        growing = file.with_suffix(".partial")
        growing.write_text(str(free_port("127.0.0.1")))
        growing.rename(file)
    while not file.exists():  # the test ends processes that wait too long
        time.sleep(0.02)
    return int(file.read_text())


def run_job(model: str, job: dict[str, Any], port_file: Path, rank: int, ranks: int) -> list[Any]:
    facts = RunFacts(batch_size=4, group_size=4, max_concurrent_samples=16, steps=10, synchronous=True)
    trainer = FsdpTrainer(FsdpOptions(**{"learning_rate": 1e-3, "warmup_steps": 0, **job["options"]}), facts)
    opened = trainer.trainer_open(
        TrainerPlace(
            rank=rank,
            world_size=ranks,
            local_rank=rank,
            master_address="127.0.0.1",
            master_port=meeting_port(port_file, rank),
            device="cpu",
            model=Path(model),
            publish_dtype="float32",
            steps=10,
            seed=0,
            timeout=120.0,
        )
    )
    answers: list[Any] = [asdict(opened)]
    for name, argument in job["actions"]:
        arguments = argument if isinstance(argument, tuple) else () if argument is None else (argument,)
        try:
            own = {"train_while_saving": train_while_saving, "broadcast_all": broadcast_all}.get(name)
            answer = own(trainer, *arguments) if own else getattr(trainer, name)(*arguments)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        if isinstance(answer, StepReport):
            answer = {**asdict(answer), "busy_seconds": 0.0}
        answers.append(answer)
    trainer.trainer_close()
    return answers


def train_while_saving(trainer: FsdpTrainer, batches: list[TrainingBatch], directory: Path, model: Path) -> dict[str, Any]:
    """Return the digest of what was saved, and the first step's metrics."""
    with ThreadPoolExecutor(1) as thread:
        saving = thread.submit(trainer.save_trainer, directory, model)
        report, *_ = [trainer.train_batch(batch) for batch in batches]
    return {**asdict(report), "busy_seconds": 0.0, "digest": saving.result().digest}


def broadcast_all(trainer: FsdpTrainer, group: WeightGroup, rank0_joins: bool) -> str:
    """Send every bucket to the group, or fail to on rank 0 alone; return the digest."""
    manifest = trainer.weight_manifest()
    if rank0_joins and trainer._trainer._place.rank == 0:
        trainer.join_weight_group(group)
    for index in range(len(manifest.buckets)):
        with nullcontext() if rank0_joins else suppress(PublicationError):
            trainer.broadcast_bucket(index)
    return manifest.digest


if __name__ == "__main__":
    directory, rank, ranks = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    usual, jobs = pickle.loads((directory / "jobs.pickle").read_bytes())
    answers = [
        run_job(job.get("model", usual), job, directory / f"port-{number}", rank, ranks) for number, job in enumerate(jobs)
    ]
    (directory / f"answers-{rank}.pickle").write_bytes(pickle.dumps(answers))
    # FSDP2 keeps gloo's threads alive after `destroy_process_group`; the interpreter's teardown may abort under them.
    os._exit(0)

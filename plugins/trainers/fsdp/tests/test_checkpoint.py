"""A resumed trainer goes on as if it had never stopped."""

from __future__ import annotations

import os
import pickle
import resource
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from asyncrl import TrainingBatch
from asyncrl.errors import CheckpointError
from asyncrl_fsdp import FsdpTrainer


@pytest.mark.parametrize("shard", ["auto", "always"])
def test_continuation_is_bit_identical(
    open_trainer: Callable[..., FsdpTrainer], make_batch: Callable[..., TrainingBatch], tmp_path: Path, shard: str
) -> None:
    options = {"shard": shard, "lr_schedule": "cosine", "warmup_steps": 3}
    trainer = open_trainer(**options)
    trainer.train_batch(make_batch(seed=1))
    captured = trainer.weight_manifest().digest
    trainer.capture_trainer()
    kept_on = trainer.train_batch(make_batch(seed=2))
    digest = trainer.weight_manifest().digest
    assert trainer.save_trainer(tmp_path / "state", tmp_path / "model").digest == captured != digest

    resumed = open_trainer(**options)
    resumed.load_trainer(tmp_path / "state")
    report = resumed.train_batch(make_batch(seed=2))
    assert report.metrics == kept_on.metrics
    assert resumed.weight_manifest().digest == digest


def save(trainer: FsdpTrainer, place: Path) -> None:
    trainer.capture_trainer()
    trainer.save_trainer(place / "trainer", place / "model")


def test_training_goes_on_while_a_slow_disk_takes_what_was_captured(
    open_trainer: Callable[..., FsdpTrainer], make_batch: Callable[..., TrainingBatch], tmp_path: Path
) -> None:
    trainer = open_trainer(shard="always")
    trainer.train_batch(make_batch(seed=1))
    captured = trainer.weight_manifest().digest
    trainer.capture_trainer()
    (tmp_path / "model").mkdir()
    pipe = tmp_path / "model" / "config.json"
    os.mkfifo(pipe)  # takes nothing until somebody reads it
    with ThreadPoolExecutor(1) as thread:
        saving = thread.submit(trainer.save_trainer, tmp_path / "trainer", tmp_path / "model")
        try:
            for seed in (2, 3):
                trainer.train_batch(make_batch(seed=seed))
            assert not saving.done()
        finally:
            pipe.read_bytes()
    assert saving.result().digest == captured != trainer.weight_manifest().digest
    again = open_trainer(shard="always")
    again.load_trainer(tmp_path / "trainer")
    assert again.weight_manifest().digest == captured


@pytest.fixture
def small_files() -> Iterator[None]:
    """Files can't grow beyond 100,000 bytes, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_is_full_is_one_clear_error_and_training_goes_on(
    open_trainer: Callable[..., FsdpTrainer], make_batch: Callable[..., TrainingBatch], tmp_path: Path, small_files: None
) -> None:
    trainer = open_trainer()
    trainer.train_batch(make_batch(seed=1))
    with pytest.raises(CheckpointError, match=r"^can't write the trainer's state: File too large$"):
        save(trainer, tmp_path)
    trainer.train_batch(make_batch(seed=2))


class Evil:
    """Whoever unpickles it leaves a trace."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.trace),)


def planted_beside(place: Path, evil: Evil) -> None:
    """Under the names that torch.distributed.checkpoint usually gives to pickles."""
    for name in (".metadata", "__0.metadata", "__0_0.distcp"):
        (place / name).write_bytes(pickle.dumps(evil))


def planted_instead(place: Path, evil: Evil) -> None:
    shard_of(place).unlink()
    planted_beside(place, evil)


def planted_in_a_shard(place: Path, evil: Evil) -> None:
    shard_of(place).write_bytes(pickle.dumps(evil))


def planted_as_torch_saves_it(place: Path, evil: Evil) -> None:
    torch.save(evil, shard_of(place))


def shard_of(place: Path) -> Path:
    (shard,) = place.glob("*.safetensors")
    return shard


@pytest.mark.parametrize("plant", [planted_instead, planted_in_a_shard, planted_as_torch_saves_it])
def test_a_pickle_in_a_checkpoint_is_one_clear_error_and_nothing_of_it_runs(
    open_trainer: Callable[..., FsdpTrainer], tmp_path: Path, plant: Callable[[Path, Evil], None]
) -> None:
    trainer = open_trainer()
    save(trainer, tmp_path)
    plant(tmp_path / "trainer", Evil(tmp_path / "trace"))
    with pytest.raises(CheckpointError, match=f"^can't read a trainer's state from {tmp_path / 'trainer'}: ") as caught:
        trainer.load_trainer(tmp_path / "trainer")
    assert len(caught.value.message.splitlines()) == 1
    assert not (tmp_path / "trace").exists()


def test_a_pickle_beside_the_shards_is_not_read(open_trainer: Callable[..., FsdpTrainer], tmp_path: Path) -> None:
    trainer = open_trainer()
    save(trainer, tmp_path)
    planted_beside(tmp_path / "trainer", Evil(tmp_path / "trace"))
    trainer.load_trainer(tmp_path / "trainer")
    assert not (tmp_path / "trace").exists()


def test_missing_state_is_one_clear_error(open_trainer: Callable[..., FsdpTrainer], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"can't read a trainer's state from .*nothing"):
        open_trainer().load_trainer(tmp_path / "nothing")

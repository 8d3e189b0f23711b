"""A resumed trainer goes on as if it had never stopped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
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


def test_missing_state_is_one_clear_error(open_trainer: Callable[..., FsdpTrainer], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"can't read a trainer's state from .*nothing"):
        open_trainer().load_trainer(tmp_path / "nothing")

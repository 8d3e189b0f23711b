"""A checkpoint appears whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asyncrl.errors import CheckpointError
from asyncrl.training.checkpoints import RunCheckpoints
from asyncrl.training.interfaces import Exported
from asyncrl.training.stored import FORMAT, read


class Writer:
    """Writes real files as a trainer would; `broken` makes the export fail half-way."""

    def __init__(self, broken: OSError | None = None) -> None:
        self.broken = broken

    async def save(self, directory: Path) -> None:
        directory.mkdir()
        (directory / "shard").write_bytes(b"x" * 100)

    async def export(self, directory: Path) -> Exported:
        directory.mkdir()
        (directory / "model.safetensors").write_bytes(b"x" * 100)
        if self.broken:
            raise self.broken
        return Exported(directory, 100, "digest")


async def state() -> tuple[dict[str, Any], dict[str, Any]]:
    return {"version": 7}, {"rewards": np.ones(3)}


def make(path: Path, writer: Writer, saved: list[int], *, interval: int = 2, keep: int = 2) -> RunCheckpoints:
    return RunCheckpoints(
        path, interval=interval, keep=keep, trainer=writer, run_state=state, on_saved=lambda step, directory: saved.append(step)
    )


async def test_a_checkpoint_is_written_at_each_interval_and_after_the_last_step(tmp_path: Path) -> None:
    saved: list[int] = []
    checkpoints = make(tmp_path, Writer(), saved, keep=0)
    for step in range(1, 6):
        await checkpoints.after_step(step, last=step == 5)
    assert saved == [2, 4, 5]
    stored = read(tmp_path / "step-4")
    assert stored.run == {"format": FORMAT, "step": 4, "digest": "digest", "version": 7}
    assert stored.arrays()["rewards"].tolist() == [1, 1, 1]


async def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    checkpoints = make(tmp_path, Writer(), [], interval=1, keep=2)
    for step in (8, 9, 10, 11):
        await checkpoints.after_step(step, last=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-10", "step-11"]


async def test_a_full_disk_is_a_typed_error_and_leaves_nothing_half_written(tmp_path: Path) -> None:
    saved: list[int] = []
    checkpoints = make(tmp_path, Writer(OSError(28, "No space left on device")), saved)
    with pytest.raises(CheckpointError, match="checkpoint of step 2 .*No space left on device"):
        await checkpoints.after_step(2, last=False)
    assert list(tmp_path.iterdir()) == []
    assert saved == []

"""A checkpoint is written while training goes on; it appears whole or not at all."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asyncrl.errors import CheckpointError, RunError
from asyncrl.training.checkpoints import RunCheckpoints
from asyncrl.training.interfaces import Exported
from asyncrl.training.stored import FORMAT, choose, read, remove_partial

PATIENCE = 60.0


class Writer:
    """Writes real files as a trainer would, when it is let through; `broken` makes it fail half-way."""

    def __init__(self, broken: Exception | None = None) -> None:
        self.broken = broken
        self.version = self.captured = 0
        self.began = asyncio.Event()
        self.open = asyncio.Event()
        self.open.set()

    async def capture(self) -> None:
        self.captured = self.version

    async def save(self, directory: Path, model: Path) -> Exported:
        directory.mkdir()
        (directory / "shard").write_bytes(b"x" * 100)
        self.began.set()
        await self.open.wait()
        if self.broken:
            raise self.broken
        model.mkdir()
        (model / "model.safetensors").write_bytes(b"x" * 100)
        return Exported(model, 100, f"digest {self.captured}")

    async def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"version": self.version}, {"rewards": np.ones(3)}


def make(path: Path, writer: Writer, saved: list[int], *, interval: int = 2, keep: int = 2, **more: Any) -> RunCheckpoints:
    return RunCheckpoints(
        path,
        interval=interval,
        keep=keep,
        trainer=writer,
        run_state=writer.state,
        on_saved=lambda step, directory: saved.append(step),
        **more,
    )


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []


class Heard(logging.Handler):
    """Waits for a line of the log."""

    def __init__(self, line: str) -> None:
        super().__init__()
        self._line = line
        self._heard = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self._line in record.getMessage():
            self._heard.set()

    async def wait(self) -> None:
        logging.getLogger("asyncrl").addHandler(self)
        try:
            await asyncio.wait_for(self._heard.wait(), PATIENCE)
        finally:
            logging.getLogger("asyncrl").removeHandler(self)


async def test_a_checkpoint_is_written_at_each_interval_and_after_the_last_step(tmp_path: Path) -> None:
    saved: list[int] = []
    writer = Writer()
    checkpoints = make(tmp_path, writer, saved, keep=0)
    for step in range(1, 6):
        writer.version = step
        await checkpoints.after_step(step, last=step == 5)
    await checkpoints.settle()
    assert saved == [2, 4, 5]
    stored = read(tmp_path / "step-4")
    assert stored.run == {"format": FORMAT, "step": 4, "digest": "digest 4", "version": 4}
    assert stored.arrays()["rewards"].tolist() == [1, 1, 1]


async def test_training_goes_on_while_what_was_captured_is_written(tmp_path: Path) -> None:
    saved: list[int] = []
    writer = Writer()
    checkpoints = make(tmp_path, writer, saved)
    writer.open.clear()
    await checkpoints.after_step(2, last=False)
    await writer.began.wait()
    writer.version = 3
    await checkpoints.after_step(3, last=False)
    assert names(tmp_path) == [".step-2.partial"] and saved == []
    writer.open.set()
    await checkpoints.written(2)
    assert names(tmp_path) == ["step-2"] and saved == [2]
    assert read(tmp_path / "step-2").run["version"] == 0 and read(tmp_path / "step-2").run["digest"] == "digest 0"


async def test_one_is_written_at_a_time_and_who_waits_says_for_which(tmp_path: Path) -> None:
    writer = Writer()
    checkpoints = make(tmp_path, writer, [], interval=1, wait_warning=0.01)
    writer.open.clear()
    await checkpoints.after_step(1, last=False)
    writer.version = 2
    second = asyncio.create_task(checkpoints.after_step(2, last=False))
    await Heard("still waiting for the checkpoint of step 1 to be written").wait()
    assert writer.captured == 0  # the copy is still needed
    writer.open.set()
    await second
    await checkpoints.settle()
    assert names(tmp_path) == ["step-1", "step-2"] and read(tmp_path / "step-2").run["digest"] == "digest 2"


async def test_only_the_newest_complete_ones_are_kept(tmp_path: Path) -> None:
    writer = Writer()
    checkpoints = make(tmp_path, writer, [], interval=1, keep=2)
    for step in (8, 9, 10, 11):
        await checkpoints.after_step(step, last=False)
    await checkpoints.settle()
    assert names(tmp_path) == ["step-10", "step-11"]
    writer.open.clear()
    writer.began.clear()
    await checkpoints.after_step(12, last=False)
    await writer.began.wait()
    await checkpoints.retire()
    assert names(tmp_path) == [".step-12.partial", "step-10", "step-11"]
    await checkpoints.abandon()


@pytest.mark.parametrize("broken", [OSError(5, "Input/output error"), CheckpointError("rank 1: Input/output error")])
async def test_a_broken_disk_is_one_error_at_the_next_step_and_leaves_nothing_half_written(
    tmp_path: Path, broken: Exception
) -> None:
    saved: list[int] = []
    checkpoints = make(tmp_path, Writer(broken), saved)
    await checkpoints.after_step(2, last=False)
    await checkpoints.written(2)
    with pytest.raises(CheckpointError, match="^checkpoint of step 2 in .*Input/output error"):
        await checkpoints.after_step(3, last=False)
    assert names(tmp_path) == [] and saved == []
    await checkpoints.settle()  # it was said


async def test_the_end_of_the_run_waits_for_the_last_one(tmp_path: Path) -> None:
    checkpoints = make(tmp_path, Writer(OSError(28, "No space left on device")), [])
    await checkpoints.after_step(3, last=True)
    with pytest.raises(CheckpointError, match="checkpoint of step 3"):
        await checkpoints.settle()


async def test_what_is_abandoned_leaves_nothing_and_the_next_one_is_written(tmp_path: Path) -> None:
    saved: list[int] = []
    writer = Writer()
    checkpoints = make(tmp_path, writer, saved)
    writer.open.clear()
    await checkpoints.after_step(2, last=False)
    await writer.began.wait()
    await checkpoints.abandon()
    assert names(tmp_path) == []
    writer.open.set()
    await checkpoints.after_step(2, last=False)
    await checkpoints.settle()
    assert names(tmp_path) == ["step-2"] and saved == [2]


async def test_a_run_that_fails_still_finishes_what_is_being_written(tmp_path: Path) -> None:
    writer = Writer()
    checkpoints = make(tmp_path, writer, [])
    writer.open.clear()
    await checkpoints.after_step(2, last=False)
    closing = asyncio.create_task(checkpoints.close(RunError("something else")))
    await writer.began.wait()
    writer.open.set()
    await closing
    assert names(tmp_path) == ["step-2"]


async def test_a_run_that_fails_says_also_what_could_not_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoints = make(tmp_path, Writer(OSError(28, "No space left on device")), [])
    await checkpoints.after_step(2, last=False)
    with caplog.at_level(logging.WARNING, "asyncrl"):
        await checkpoints.close(RunError("something else"))
    assert "checkpoint of step 2" in caplog.text and "No space left on device" in caplog.text


async def test_a_run_that_is_to_end_at_once_does_not_wait(tmp_path: Path) -> None:
    writer = Writer()
    checkpoints = make(tmp_path, writer, [])
    writer.open.clear()
    await checkpoints.after_step(2, last=False)
    await writer.began.wait()
    await checkpoints.close(asyncio.CancelledError())
    assert names(tmp_path) == []


async def test_closing_that_is_cancelled_gives_up(tmp_path: Path) -> None:
    writer = Writer()
    checkpoints = make(tmp_path, writer, [])
    writer.open.clear()
    await checkpoints.after_step(2, last=False)
    closing = asyncio.create_task(checkpoints.close(RunError("something else")))
    await writer.began.wait()
    closing.cancel()
    await asyncio.wait({closing})
    assert closing.cancelled() and names(tmp_path) == []


KILLED = """
import asyncio, sys
from pathlib import Path
from test_checkpoints import Writer, make

async def main():
    writer = Writer()
    checkpoints = make(Path(sys.argv[1]), writer, [], interval=1)
    await checkpoints.after_step(1, last=False)
    await checkpoints.settle()
    writer.open.clear()
    writer.began.clear()
    await checkpoints.after_step(2, last=False)
    await writer.began.wait()
    print("writing", flush=True)
    await checkpoints.settle()

asyncio.run(main())
"""


def test_one_that_was_killed_while_it_was_written_is_never_chosen_and_is_removed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent) as process:
        assert process.stdout is not None and process.stdout.readline() == "writing\n"
        process.kill()
    assert names(tmp_path) == [".step-2.partial", "step-1"] and names(tmp_path / ".step-2.partial") == ["trainer"]
    assert choose(tmp_path).step == 1
    remove_partial(tmp_path)
    assert names(tmp_path) == ["step-1"]


FULL = CheckpointError("can't write the trainer's state: No space left on device")


async def test_a_checkpoint_that_finds_no_room_costs_the_checkpoint_and_the_next_one_is_tried(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved: list[int] = []
    failed: list[str] = []
    writer = Writer()
    checkpoints = make(tmp_path, writer, saved, on_failed=lambda: failed.append("one"))
    await checkpoints.after_step(2, last=False)
    await checkpoints.settle()
    writer.broken = FULL
    await checkpoints.after_step(4, last=False)
    await checkpoints.settle()
    assert names(tmp_path) == ["step-2"]
    assert len(failed) == 1
    assert "there is no checkpoint of step 4" in caplog.text and "the newest one is that of step 2" in caplog.text
    writer.broken = None
    await checkpoints.after_step(6, last=False)
    await checkpoints.settle()
    assert saved == [2, 6]


async def test_a_last_checkpoint_that_finds_no_room_ends_the_run(tmp_path: Path) -> None:
    checkpoints = make(tmp_path, Writer(FULL), [])
    await checkpoints.after_step(1, last=True)
    with pytest.raises(CheckpointError, match="No space left"):
        await checkpoints.settle()


async def test_a_disk_without_room_for_another_one_loses_the_oldest_but_never_the_newest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[int] = []
    failed: list[str] = []
    checkpoints = make(tmp_path, Writer(), saved, keep=3, on_failed=lambda: failed.append("one"))
    for step in (2, 4, 6):
        await checkpoints.after_step(step, last=False)
    await checkpoints.settle()
    sizes = [sum(path.stat().st_size for path in (tmp_path / f"step-{step}").rglob("*") if path.is_file()) for step in (2, 4, 6)]

    def usage(place: object) -> Any:
        """A disk that holds three of them, with one byte to spare beside what others take."""
        taken = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
        return type("Usage", (), {"free": room - taken})

    monkeypatch.setattr("asyncrl.training.checkpoints.shutil.disk_usage", usage)
    room = sum(sizes) + 1
    await checkpoints.after_step(8, last=False)
    await checkpoints.settle()
    assert names(tmp_path) == ["step-4", "step-6", "step-8"]
    assert "the checkpoint of step 2 is deleted to make room" in caplog.text
    room = sizes[-1] + 1
    await checkpoints.after_step(10, last=False)
    await checkpoints.settle()
    assert names(tmp_path) == ["step-8"]
    assert failed == ["one"] and "there is no checkpoint of step 10" in caplog.text

"""Snapshots are complete or not evaluated; what was exported is removed, and nothing else ever is."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asyncrl.errors import PluginFailed, TrainerError
from asyncrl.evaluation.dispatcher import EvalDispatcher
from asyncrl.evaluation.records import Checkpoint, EvalRecord, EvalResult
from asyncrl.evaluation.snapshots import ExportedSnapshots, ReusedCheckpoints, Snapshots
from asyncrl.training.checkpoints import RunCheckpoints
from asyncrl.training.interfaces import Exported
from asyncrl.training.snapshots import mark_complete

PATIENCE = 30.0


class Exporter:
    """Writes a directory as a trainer does, marker last; `spoil` may break it after the weights are written."""

    def __init__(self, spoil: Callable[[Path], None] = lambda directory: None, size: int = 1000) -> None:
        self.spoil = spoil
        self.size = size
        self.count = 0
        self.open = asyncio.Event()
        """Whether `save` writes, or waits."""
        self.open.set()

    async def capture(self) -> None: ...

    async def save(self, directory: Path, model: Path) -> Exported:
        await self.open.wait()
        directory.mkdir()
        return await self.export(model)

    async def export(self, directory: Path) -> Exported:
        self.count += 1
        directory.mkdir()
        (directory / "config.json").write_text("{}")
        (directory / "model.safetensors").write_bytes(bytes(self.size))
        self.spoil(directory)
        mark_complete(directory)
        return Exported(directory, self.size, f"digest-{self.count}")


class Bench:
    """A dispatcher over real directories; a point is evaluated when it is let through."""

    def __init__(self, snapshots: Snapshots, **options: Any) -> None:
        self.records: list[EvalRecord] = []
        self.evaluated: list[Checkpoint] = []
        self.open = asyncio.Event()
        self.open.set()
        defaults: dict[str, Any] = {"interval": 1, "before": False, "blocking": False, "timeout": PATIENCE}
        self.evals = EvalDispatcher(
            evaluate=self._evaluate, record=self.records.append, snapshots=snapshots, **(defaults | options)
        )

    async def _evaluate(self, checkpoint: Checkpoint) -> EvalResult:
        await self.open.wait()
        self.evaluated.append(checkpoint)
        return EvalResult({})

    async def step(self, step: int, *, last: bool = False) -> None:
        await self.evals.after_step(step, step, lag_steps=0, last=last)

    async def settle(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self.evals.settle()

    @property
    def outcomes(self) -> dict[int, str]:
        return {record.step: record.skipped for record in self.records}

    def why(self, step: int) -> str:
        return next(str(record.detail["why"]) for record in self.records if record.step == step)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []


@pytest.fixture
def staging(tmp_path: Path) -> Path:
    return tmp_path / "staging" / "asyncrl-evals-abc"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    return directory


async def test_the_initial_weights_are_evaluated_where_they_are_without_an_export(staging: Path, model: Path) -> None:
    exporter = Exporter()
    bench = Bench(ExportedSnapshots(exporter, staging, model, keep=0), before=True)
    await bench.evals.before_training(0)
    await bench.settle()
    await bench.evals.close()
    assert [(one.directory, one.marked) for one in bench.evaluated] == [(model, False)]
    assert bench.outcomes == {0: ""} and exporter.count == 0
    assert (model / "config.json").is_file()


async def test_a_point_is_evaluated_from_the_export_of_its_own_version(staging: Path, model: Path) -> None:
    """Field report 24."""
    bench = Bench(ExportedSnapshots(Exporter(), staging, model, keep=0))
    await bench.step(1)
    await bench.settle()
    assert [(one.step, one.version, one.directory, one.marked, one.digest) for one in bench.evaluated] == [
        (1, 1, staging / "step-1", True, "digest-1")
    ]
    assert bench.records[0].export_seconds > 0


@pytest.mark.parametrize("keep", [0, 1, 2])
async def test_each_settled_point_retires_one_so_that_as_many_are_kept_and_none_outlives_the_run(
    keep: int, staging: Path, model: Path
) -> None:
    bench = Bench(ExportedSnapshots(Exporter(), staging, model, keep=keep))
    for step in range(1, 6):
        await bench.step(step)
        await bench.settle()
        assert names(staging) == [f"step-{kept}" for kept in range(max(1, step + 1 - keep), step + 1)]
    await bench.evals.close()
    assert not staging.exists()


async def test_what_others_put_beside_the_snapshots_stays(staging: Path, model: Path) -> None:
    bench = Bench(ExportedSnapshots(Exporter(), staging, model, keep=1))
    await bench.step(1)
    (staging / "notes").mkdir()
    (staging.parent / "step-1").mkdir()
    await bench.step(2)
    await bench.settle()
    await bench.evals.close()
    assert names(staging) == ["notes"] and (staging.parent / "step-1").is_dir()


def _raise(error: Exception) -> Callable[[Path], None]:
    def spoil(directory: Path) -> None:
        raise error

    return spoil


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "[Errno 28] No space left on device"),
        (TrainerError("rank 1 did not answer"), "rank 1 did not answer"),
        (PluginFailed("trainer plugin 'mine': KeyError"), "trainer plugin 'mine': KeyError"),
        (ZeroDivisionError("division by zero"), "division by zero"),
    ],
)
async def test_an_export_that_fails_is_a_skip_leaves_nothing_and_the_next_point_goes_on(
    error: Exception, why: str, staging: Path, model: Path
) -> None:
    exporter = Exporter(_raise(error))
    bench = Bench(ExportedSnapshots(exporter, staging, model, keep=2))
    await bench.step(1)
    assert bench.outcomes == {1: "export_failed"} and bench.why(1) == why
    assert names(staging) == []
    exporter.spoil = lambda directory: None
    await bench.step(2)
    await bench.settle()
    assert bench.outcomes == {1: "export_failed", 2: ""}


FULL_DISK = """
import asyncio, json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_snapshots import Bench, Exporter, ExportedSnapshots

async def main(place):
    exporter = Exporter(size=3_000_000)
    bench = Bench(ExportedSnapshots(exporter, place / "staging", place, keep=0))
    await bench.step(1)
    left = [str(path) for path in place.rglob("*") if path.is_file()]
    exporter.size = 1000
    await bench.step(2)
    await bench.settle()
    print(json.dumps([bench.outcomes[1], bench.why(1), left, bench.outcomes[2]]))

asyncio.run(main(Path(sys.argv[1])))
"""


def test_a_disk_that_is_really_full_is_a_skip_that_leaves_nothing(tmp_path: Path) -> None:
    """On a file system of 2 MB, which a user namespace may mount; the limit of a file's size where it may not."""
    place = tmp_path / "small"
    place.mkdir()
    command = [sys.executable, "-c", FULL_DISK, str(place), str(Path(__file__).parent)]
    mount = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", 'mount -t tmpfs -o size=2m none "$0" && exec "$@"']
    can_mount = subprocess.run([*mount, str(place), "true"], capture_output=True).returncode == 0
    limit = ["sh", "-c", 'trap "" XFSZ; ulimit -f 4000; exec "$@"', "sh"]
    run = subprocess.run(
        [*([*mount, str(place)] if can_mount else limit), *command],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert run.returncode == 0, run.stderr
    outcome, why, left, after = json.loads(run.stdout)
    assert outcome == "export_failed" and after == ""
    assert ("No space left on device" in why) if can_mount else ("File too large" in why)
    assert left == []


async def test_a_snapshot_without_its_marker_is_not_evaluated(staging: Path, model: Path) -> None:
    bench = Bench(ExportedSnapshots(Exporter(), staging, model, keep=0))
    bench.open.clear()
    await bench.step(1)
    await bench.step(2)
    (staging / "step-2" / ".complete").unlink()
    bench.open.set()
    await bench.settle()
    assert bench.outcomes == {1: "", 2: "ckpt_missing"}
    assert [one.step for one in bench.evaluated] == [1]
    assert names(staging) == []


async def test_a_directory_that_is_deleted_in_between_is_a_skip(staging: Path, model: Path) -> None:
    bench = Bench(ExportedSnapshots(Exporter(), staging, model, keep=1))
    bench.open.clear()
    await bench.step(1)
    await bench.step(2)
    for path in (staging / "step-2").iterdir():
        path.unlink()
    (staging / "step-2").rmdir()
    bench.open.set()
    await bench.settle()
    assert bench.outcomes == {1: "", 2: "ckpt_missing"}
    await bench.evals.close()
    assert not staging.exists()


async def test_the_staging_directory_is_made_again_when_somebody_cleaned_up(staging: Path, model: Path) -> None:
    bench = Bench(ExportedSnapshots(Exporter(), staging, model, keep=0))
    await bench.step(1)
    await bench.settle()
    staging.rmdir()
    staging.parent.rmdir()
    await bench.step(2)
    await bench.settle()
    assert bench.outcomes == {1: "", 2: ""}


async def _run_state() -> tuple[dict[str, Any], dict[str, Any]]:
    return {"version": 0}, {}


def reusing(place: Path, model: Path, exporter: Exporter, **options: Any) -> tuple[Bench, RunCheckpoints]:
    """A dispatcher and the checkpoints of every step that it evaluates."""
    snapshots = ReusedCheckpoints(
        place, model, written=lambda step: checkpoints.written(step), released=lambda: checkpoints.retire()
    )
    bench = Bench(snapshots, **options)
    checkpoints = RunCheckpoints(
        place,
        interval=1,
        keep=1,
        trainer=exporter,
        run_state=_run_state,
        on_saved=lambda step, path: None,
        in_use=bench.evals.steps_in_use,
    )
    return bench, checkpoints


async def test_reused_checkpoints_are_evaluated_with_their_digest_and_kept_while_they_are_needed(
    tmp_path: Path, model: Path
) -> None:
    place = tmp_path / "checkpoints"
    bench, checkpoints = reusing(place, model, Exporter(), before=True, max_in_flight=10)
    bench.open.clear()
    await bench.evals.before_training(0)
    for step in range(1, 5):
        await checkpoints.after_step(step, last=False)
        await bench.step(step)
    await checkpoints.settle()
    assert names(place) == ["step-1", "step-2", "step-3", "step-4"]  # all of them are pending
    bench.open.set()
    await bench.settle()
    assert names(place) == ["step-4"]
    assert bench.outcomes == {step: "" for step in range(5)}
    assert [one.digest for one in bench.evaluated] == ["", "digest-1", "digest-2", "digest-3", "digest-4"]
    assert [one.directory for one in bench.evaluated] == [model, *(place / f"step-{step}" / "model" for step in range(1, 5))]
    assert {record.export_seconds for record in bench.records} == {0.0}
    await bench.evals.close()
    assert names(place) == ["step-4"]  # what the dispatcher did not export it never deletes


async def test_a_point_waits_until_its_checkpoint_is_written_and_training_does_not(tmp_path: Path, model: Path) -> None:
    exporter = Exporter()
    bench, checkpoints = reusing(tmp_path / "checkpoints", model, exporter)
    exporter.open.clear()
    await checkpoints.after_step(1, last=False)
    await bench.step(1)
    await asyncio.sleep(0)
    assert bench.records == [] and bench.evaluated == []
    exporter.open.set()
    await bench.settle()
    assert bench.outcomes == {1: ""}
    assert [one.digest for one in bench.evaluated] == ["digest-1"]


async def test_a_checkpoint_that_is_gone_is_a_skip(tmp_path: Path, model: Path) -> None:
    async def written(step: int) -> None: ...

    async def released() -> None: ...

    bench = Bench(ReusedCheckpoints(tmp_path / "checkpoints", model, written=written, released=released))
    await bench.step(1)
    await bench.settle()
    assert bench.outcomes == {1: "ckpt_missing"}
    assert "step-1/model is not there, or not complete" in bench.why(1)


async def test_ctrl_c_with_points_pending_leaves_a_record_for_each_and_no_snapshot(staging: Path, model: Path) -> None:
    """Field report 27."""
    bench = Bench(ExportedSnapshots(Exporter(), staging, model, keep=2))
    bench.open.clear()
    await bench.step(1)
    await bench.step(2)
    waiting = asyncio.create_task(bench.step(3))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await bench.evals.close()
    assert bench.outcomes == {1: "interrupted", 2: "interrupted", 3: "interrupted"}
    assert not staging.exists()

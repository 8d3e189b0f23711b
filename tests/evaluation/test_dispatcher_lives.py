"""Whatever durations, failures, stops, crashes and resumes a run meets: every due point has one record, and nothing is left over."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from asyncrl.errors import EvalSkip, RunError, TrainerError
from asyncrl.evaluation.dispatcher import EvalDispatcher
from asyncrl.evaluation.records import Checkpoint, EvalRecord, EvalResult
from asyncrl.evaluation.snapshots import ExportedSnapshots, ReusedCheckpoints, Snapshots, staging_directory
from asyncrl.simulation.clock import run_virtual
from asyncrl.training.interfaces import Exported, StepReport
from asyncrl.training.loop import StepTimes, Stop, TrainingLoop
from asyncrl.training.snapshots import MARKER, mark_complete
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

TIMEOUT = 50.0
REASONS = {"", "busy", "export_failed", "ckpt_missing", "unhealthy", "crashed", "interrupted", "no_credit"}
Fate = Literal["works", "skips", "raises", "hangs", "torn", "deleted", "no export"]


@dataclass(frozen=True)
class Life:
    """How one process of the run ends, if it does not come to the end before: when, and in which way. One whose trainer is `lost`
    goes back within the same command."""

    at: float
    end: Literal["killed", "interrupted", "stopped", "lost"]
    janitor: bool


@dataclass(frozen=True)
class Case:
    interval: int
    before: bool
    steps: int
    source: Literal["none", "export", "reuse"]
    blocking: bool
    save_interval: int
    max_in_flight: int
    overflow: Literal["backpressure", "skip"]
    keep: int
    fates: tuple[Fate, ...]
    seconds: tuple[float, ...]
    lives: tuple[Life, ...]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    save = draw(st.integers(1, 3))
    source = draw(st.sampled_from(["none", "export", "export", "reuse", "reuse"]))
    ends = st.sampled_from(["killed", "killed", "interrupted", "stopped", "lost", "lost"])
    lives = st.builds(Life, st.floats(0.5, 60), ends, st.booleans())
    fates = ["works", "works", "works", "skips", "raises", "hangs", "torn", "deleted", "no export"]
    return Case(
        interval=save * draw(st.integers(1, 2)) if source == "reuse" else draw(st.integers(1, 4)),
        before=draw(st.booleans()),
        steps=draw(st.integers(1, 12)),
        source=source,
        blocking=draw(st.sampled_from([False, False, False, True])),
        save_interval=save,
        max_in_flight=draw(st.integers(1, 3)),
        overflow=draw(st.sampled_from(["backpressure", "skip"])),
        keep=draw(st.integers(0, 3)),
        fates=tuple(draw(st.lists(st.sampled_from(fates), min_size=13, max_size=13))),
        seconds=tuple(draw(st.lists(st.floats(0.0, 12.0), min_size=13, max_size=13))),
        lives=tuple(draw(st.lists(lives, max_size=4))),
    )


@dataclass
class Disk:
    """What survives a process: records, checkpoints, and whatever lies in directories."""

    place: Path
    records: list[dict[str, Any]] = field(default_factory=list)
    states: dict[int, str] = field(default_factory=dict)
    due: set[int] = field(default_factory=set)
    perhaps: set[int] = field(default_factory=set)
    """Steps that were due as the last of a run that was told to stop, and then was killed."""

    @property
    def checkpoints(self) -> Path:
        return self.place / "checkpoints"

    def weights(self, directory: Path, version: int) -> None:
        directory.mkdir(parents=True)
        (directory / "config.json").write_text(str(version))
        mark_complete(directory)


class Process:
    """One life of the run: the real loop and the real dispatcher; trainer, rollout and checkpoints are scripted."""

    def __init__(self, disk: Disk, case: Case, number: int, done: int) -> None:
        self.disk = disk
        self.case = case
        self.done = done
        self.version = done
        self.dead = False
        self.trained_steps = done
        self.order: list[int] = []
        self.evaluating = 0
        self.stop = Stop()
        self.staging = staging_directory(disk.place, disk.place, str(number))
        self.evals = EvalDispatcher(
            interval=case.interval,
            before=case.before,
            evaluate=self.evaluate,
            record=self.record,
            snapshots=self.snapshots(),
            blocking=case.blocking,
            max_in_flight=case.max_in_flight,
            overflow=case.overflow,
            timeout=TIMEOUT,
        )
        self.loop = TrainingLoop(
            steps=case.steps,
            publish_interval=1,
            rollout=self,
            trainer=self,
            publisher=self,
            evals=self.evals,
            checkpoints=_Checkpoints(self),
            on_step=self.on_step,
            stop=self.stop,
            done=done,
        )

    def snapshots(self) -> Snapshots:
        model = self.disk.place / "model"
        if self.case.source == "export":
            return ExportedSnapshots(self, self.staging, model, keep=self.case.keep, remove=self.remove)
        return (
            ReusedCheckpoints(self.disk.checkpoints, model, written=self.written, released=self.retire)
            if self.case.source == "reuse"
            else Snapshots()
        )

    async def live(self, life: Life | None) -> bool:
        """Run to the end, or as far as it comes. Whether it came to the end."""
        if self.done:
            self.evals.restore(json.loads(self.disk.states[self.done]), self.disk.records)
        elif self.disk.records:  # of the initial weights
            self.evals.restore({}, self.disk.records)
        running = asyncio.get_running_loop().create_task(self.loop.run())
        if life is not None and life.end == "stopped":
            asyncio.get_running_loop().call_later(life.at, setattr, self.stop, "requested", True)
        elif life is not None:
            await asyncio.wait({running}, timeout=life.at)
        if life is not None and life.end == "killed" and not running.done():
            self.dead = True
            return False
        if life is not None and life.end == "interrupted" and not running.done():
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await self.evals.close()
            assert not self.staging.exists()
            assert self.disk.due - self.disk.perhaps <= {record["step"] for record in self.disk.records}
            return False
        if life is not None and life.end == "lost" and not running.done():
            told = len(self.disk.records)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            assert all(record["skipped"] == "interrupted" for record in self.disk.records[told:]), "only what was being admitted"
            told = len(self.disk.records)
            await self.evals.close(comes_again=True)
            assert len(self.disk.records) == told and not self.staging.exists()
            return False
        await running
        assert not self.evals.state()["pending"]
        await self.evals.close()
        return self.trained_steps == self.case.steps

    # What the loop calls

    async def take_batch(self, version: int, step: int) -> int:
        return step

    async def train(self, step: int) -> StepReport:
        await asyncio.sleep(1.0)
        return StepReport(metrics={}, update_norm=1.0, num_tokens=1, busy_seconds=1.0)

    async def trained(self, step: int) -> None:
        self.trained_steps = step

    async def publish(self, update_norm: float) -> int:
        self.version += 1
        return self.version

    async def on_step(self, step: int, report: StepReport, times: StepTimes) -> None:
        return None

    # What the dispatcher calls

    async def export(self, directory: Path) -> Exported:
        await asyncio.sleep(0.25)
        self.disk.weights(directory, self.version)
        step = int(directory.name.removeprefix("step-"))
        if self.case.fates[step] == "no export":
            raise TrainerError("no")
        there = [path for path in self.staging.iterdir() if path.name.startswith("step-")]
        assert len(there) <= self.case.max_in_flight + self.case.keep
        if self.case.fates[step] == "torn":
            (directory / MARKER).unlink()
        if self.case.fates[step] == "deleted":
            shutil.rmtree(directory)
        return Exported(directory, 1, "digest")

    async def remove(self, directory: Path) -> None:
        if not self.dead:
            shutil.rmtree(directory, ignore_errors=True)

    async def written(self, step: int) -> None:
        """Checkpoints are written at once."""

    async def retire(self) -> None:
        if not self.dead:
            self.disk.states = _retired(self.disk, self.evals.steps_in_use())

    async def evaluate(self, checkpoint: Checkpoint) -> EvalResult:
        step = checkpoint.step
        assert self.evaluating == 0, "two at once"
        assert checkpoint.version == step
        assert (checkpoint.directory is None) == (self.case.source == "none")
        if checkpoint.directory is not None:
            assert (checkpoint.directory / "config.json").read_text() == str(checkpoint.version)
        self.order.append(step)
        self.evaluating += 1
        try:
            await asyncio.sleep(TIMEOUT + 1 if self.case.fates[step] == "hangs" else self.case.seconds[step])
        finally:
            self.evaluating -= 1
        if self.case.fates[step] == "skips":
            raise EvalSkip("no credit: ask for more")
        if self.case.fates[step] == "raises":
            raise RunError("boom")
        return EvalResult({})

    def record(self, record: EvalRecord) -> None:
        if self.dead:
            return
        assert len(self.evals.state()["pending"]) <= self.case.max_in_flight
        assert record.version == record.step and record.skipped in REASONS
        assert bool(record.skipped) == bool(record.detail.get("why"))
        assert record.lag_steps == self.lag(record)
        self.disk.records.append(json.loads(json.dumps(asdict(record))))

    def lag(self, record: EvalRecord) -> int:
        """A step counts from its end on: when its own points are dispatched."""
        return self.evals._trained - record.step

    def should_be(self, step: int) -> str:
        """The reason that a point of an undisturbed run must have; '' for a result."""
        words = {"works": "", "skips": "no_credit", "raises": "crashed", "hangs": "unhealthy"}
        fate = self.case.fates[step]
        if self.case.source != "export" or step == 0:
            return words.get(fate, "")
        return {"torn": "ckpt_missing", "deleted": "ckpt_missing", "no export": "export_failed"}.get(fate, words.get(fate, ""))


class _Checkpoints:
    """Written before the point of the same step, as in a run; the newest alone is kept, beside those that are in use."""

    def __init__(self, process: Process) -> None:
        self.process = process

    async def after_step(self, step: int, *, last: bool) -> None:
        process, disk = self.process, self.process.disk
        if last or step % process.case.save_interval == 0:
            disk.weights(disk.checkpoints / f"step-{step}" / "model", process.version)
            disk.states[step] = json.dumps(process.evals.state())
            disk.states = _retired(disk, process.evals.steps_in_use())
        if last or step % process.case.interval == 0:
            disk.due.add(step)
        if last and step % process.case.interval and step != process.case.steps:
            disk.perhaps.add(step)

    async def settle(self) -> None: ...


def _retired(disk: Disk, in_use: frozenset[int]) -> dict[int, str]:
    kept = {step: state for step, state in disk.states.items() if step == max(disk.states) or step in in_use}
    for step in disk.states.keys() - kept.keys():
        shutil.rmtree(disk.checkpoints / f"step-{step}")
    return kept


def restart(disk: Disk, *, lost: bool = False) -> int:
    """Go back to the newest checkpoint, as `asyncrl resume` does, or to the beginning, where a run whose trainer was `lost` keeps the point
    of the initial weights."""
    done = max(disk.states, default=0)
    disk.records = [record for record in disk.records if record["step"] <= done] if done or lost else []
    disk.due = {step for step in disk.due if step <= done}
    return done


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases())
def test_every_due_point_has_exactly_one_record_of_one_version(case: Case) -> None:
    """Field reports 24, 25, 26 and 27."""
    with tempfile.TemporaryDirectory() as folder:
        disk = Disk(Path(folder))
        disk.weights(disk.place / "model", 0)
        (disk.place / "model" / MARKER).unlink()  # the initial model has none
        foreign = [staging_directory(disk.place, disk.place / "another", "0") / "step-1", disk.place / "step-1"]
        for directory in foreign:
            directory.mkdir(parents=True)
        done, disturbed = 0, False
        for number, life in enumerate((*case.lives, None)):
            process = Process(disk, case, number, done)
            finished = run_virtual(process.live(life), limit=10_000)
            assert process.order == sorted(process.order)
            if finished:
                break
            disturbed = True
            event(f"{life.end if life else ''} with {case.source}")
            done = restart(disk, lost=life is not None and life.end == "lost")
            if (life is not None and life.janitor) or not done:  # without a checkpoint there is no process that goes on
                shutil.rmtree(process.staging, ignore_errors=True)
        due = disk.due | ({0} if case.before else set())
        told = [record["step"] for record in disk.records]
        assert len(told) == len(set(told))
        assert due - disk.perhaps <= set(told) <= due
        if not disturbed:
            reasons = {record["step"]: record["skipped"] for record in disk.records}
            for step, reason in reasons.items():
                assert reason == process.should_be(step) or (reason == "busy" and case.overflow == "skip" and step < case.steps)
        assert (disk.place / "model" / "config.json").is_file()
        assert all(directory.is_dir() for directory in foreign)
        assert list(disk.place.glob("asyncrl-evals-*")) == [foreign[0].parent]
        assert (disk.checkpoints / f"step-{case.steps}" / "model" / MARKER).is_file()


def test_retirement_is_one_for_each_settled_point_also_after_a_restart() -> None:
    """Field report 27."""
    counts = []

    class Counting(Process):
        def record(self, record: EvalRecord) -> None:
            super().record(record)
            there = {path.name for path in disk.place.glob("asyncrl-evals-*/step-*")}
            counts.append((record.step, len(there)))

    case = Case(1, False, 8, "export", True, 2, 2, "backpressure", 2, ("works",) * 13, (0.1,) * 13, ())
    with tempfile.TemporaryDirectory() as folder:
        disk = Disk(Path(folder))
        disk.weights(disk.place / "model", 0)
        assert not run_virtual(Counting(disk, case, 0, 0).live(Life(6.0, "killed", janitor=False)))
        assert [path.name for path in sorted(disk.place.glob("asyncrl-evals-*-0/*"))]  # the janitor was killed too
        done = restart(disk)
        assert done == 4
        assert run_virtual(Counting(disk, case, 1, done).live(None))
        assert not list(disk.place.glob("asyncrl-evals-*"))
    assert [step for step, _ in counts] == [1, 2, 3, 4, 4, 5, 6, 7, 8] or [step for step, _ in counts] == [*range(1, 9)]
    assert max(there for _, there in counts) == 3  # two that are kept, and the one that is evaluated

"""What the controller tells: metrics to loggers, records to files, totals to the summary."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from asyncrl.authoring import Plugin
from asyncrl.errors import AsyncrlError
from asyncrl.evaluation.records import EvalRecord
from asyncrl.host import Host, HostMetrics
from asyncrl.loggers import MetricRecord
from asyncrl.metrics import Axis, Declared, Delta, MetricSet, Registry
from asyncrl.rollout.front import FrontMetrics
from asyncrl.rollout.loads import LoadMetrics
from asyncrl.rollout.metrics import RolloutMetrics
from asyncrl.rollout.pool import PoolMetrics
from asyncrl.runtime.directory import RunDirectory
from asyncrl.runtime.recorder import Recorded
from asyncrl.runtime.rollout_actor import Progress
from asyncrl.runtime.rollout_handle import RolloutHandle, RolloutHandleMetrics
from asyncrl.runtime.summary import Totals
from asyncrl.runtime.supervisor import SupervisorMetrics
from asyncrl.training.interfaces import StepReport
from asyncrl.training.loop import StepTimes, Trained
from asyncrl.training.metrics import EvalMetrics, RunMetrics
from asyncrl.training.publication import PublicationMetrics, Publisher

log = logging.getLogger("asyncrl")
POLL_SECONDS = 1.0
LAST_POLL_SECONDS = 5.0


def declared_metrics(plugins: Sequence[type[Plugin]]) -> list[Declared]:
    """Every metric that a run with these plugin classes can emit."""
    core = [
        RunMetrics.declared("run"),
        EvalMetrics.declared("eval"),
        RolloutMetrics.declared("rollout"),
        RolloutHandleMetrics.declared("rollout"),
        HostMetrics.declared("plugins"),
        PublicationMetrics.declared("publication"),
        PoolMetrics.declared("engines"),
        FrontMetrics.declared("engines"),
        LoadMetrics.declared("engines"),
        SupervisorMetrics.declared("engines"),
    ]
    return [metric for group in core for metric in group] + [
        metric for plugin in plugins for metric in plugin.Metrics.declared(f"{plugin.slot}/{plugin.name}")
    ]


class Reporter:
    """Folds deltas, logs each axis, and remembers what the summary needs.

    Args:
        host: the controller's plugins.
        trainer: prefix of the trainer plugin's metrics, such as ``trainer/fsdp``.
        totals: of a run that goes on, what they were with its checkpoint's step.
        started: when the run would have begun if it had never been interrupted; seconds of the monotonic clock.
        others: further metrics of the controller's.
    """

    def __init__(
        self,
        host: Host,
        registry: Registry,
        directory: RunDirectory,
        rollout: RolloutHandle,
        publisher: Publisher,
        totals: Totals,
        trainer: str,
        started: float,
        others: Sequence[MetricSet] = (),
    ) -> None:
        self._host = host
        self._registry = registry
        self._directory = directory
        self._rollout = rollout
        self._publisher = publisher
        self._totals = totals
        self._trainer = trainer
        self._others = others
        self._run = RunMetrics("run")
        self._eval = EvalMetrics("eval")
        self._started = started
        self._earlier = replace(totals)
        self._tokens_before = totals.tokens_generated
        self._paused_before = totals.paused
        self._engines_before = totals.engines_while_training
        self._version = publisher.version
        self._failing: set[str] = set()

    async def poll_forever(self) -> None:
        """Fetch deltas and log lines of the rollout actor until cancelled, so that its warnings appear while the loop waits."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            await self.poll()

    @property
    def seconds(self) -> float:
        """For which the run has run, over all its lives."""
        return time.monotonic() - self._started

    @property
    def moved(self) -> tuple[object, ...]:
        """Something that changes with whatever moves on in the run."""
        totals = self._totals
        return totals.steps, totals.evaluations, totals.tokens_generated, totals.books

    async def poll(self) -> None:
        self.fold(await self._rollout.progress())

    def fold(self, progress: Progress) -> None:
        """Take in what the rollout actor had to tell."""
        for level, line in progress.messages:
            log.log(level, "%s", line)
        for delta in progress.deltas:
            self._registry.add(delta)
        self._drain()
        self._trace(progress.finished)
        self._totals.paused = self._earlier.paused + progress.paused_seconds
        self._totals.engines = self._earlier.engines + progress.engine_busy_seconds
        self._totals.tokens_generated = progress.tokens_generated
        self._totals.books = progress.record.books

    def _drain(self) -> None:
        for delta in [*self._host.drain(), *(metrics.drain() for metrics in self._others)]:
            self._registry.add(delta)

    async def last_poll(self) -> None:
        """Fetch what is left, whatever ends the run."""
        with contextlib.suppress(OSError):
            self._directory.flush()
        with contextlib.suppress(AsyncrlError, TimeoutError):
            async with asyncio.timeout(LAST_POLL_SECONDS):
                await self.poll()
        self._log(Axis.WALL_SECONDS, round(self.seconds, 3))

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs, as JSON: totals and metrics so far."""
        return {"totals": asdict(self._totals), "metrics": self._registry.state(), "seconds": self.seconds}

    async def go_on(self, state: dict[str, Any], trained: Trained, evals: Sequence[Mapping[str, Any]], *, reported: bool) -> None:
        """Go on from a former `state`, which was taken when `trained` was not reported yet; report it unless it was afterwards.

        Args:
            evals: lines of `evals.jsonl`.
        """
        self._registry.restore(state["metrics"])
        self.know(evals)
        await self.poll()
        self._tokens_before = self._totals.tokens_generated
        self._totals.publications += trained.published == trained.step
        if not reported:
            self._report(trained.step, trained.report, trained.times)
            return
        for axis in (Axis.TRAIN_STEP, Axis.WEIGHT_VERSION, Axis.WALL_SECONDS):
            self._registry.take(axis)

    def know(self, evals: Sequence[Mapping[str, Any]]) -> None:
        """Count the eval points of these lines of `evals.jsonl`, and no others."""
        self._totals.evals.clear()
        self._totals.evaluations = sum(line["step"] > 0 for line in evals)
        for line in evals:
            for name, one in line["sets"].items():
                self._totals.add_eval(name, one["mean_reward"])

    async def step(self, step: int, report: StepReport, times: StepTimes) -> None:
        """Log one finished step."""
        await self.poll()
        self._totals.add_step(times, report.busy_seconds)
        self._report(step, report, times)

    def _report(self, step: int, report: StepReport, times: StepTimes) -> None:
        tokens = self._totals.tokens_generated - self._tokens_before
        engines_busy = self._totals.engines_while_training - self._engines_before
        self._tokens_before, self._engines_before = self._totals.tokens_generated, self._totals.engines_while_training
        paused, self._paused_before = self._totals.paused - self._paused_before, self._totals.paused
        seconds = max(times.total - times.evaluation, 1e-9)
        if self._publisher.version != self._version:
            self._totals.publications += 1
            self._version = self._publisher.version
            self._host.observe("on_weights_published", version=self._version)
        run = self._run
        run.step_seconds.set(seconds)
        run.wait_seconds.set(times.wait)
        run.train_seconds.set(report.busy_seconds)
        run.publish_seconds.set(times.publish)
        run.checkpoint_seconds.set(times.checkpoint)
        run.trainer_tokens_per_second.set(report.num_tokens / max(report.busy_seconds, 1e-9))
        run.engine_tokens_per_second.set(tokens / max(times.total, 1e-9))
        run.engine_occupancy.set(min(1.0, engines_busy / seconds))
        run.weight_version.set(self._version)
        run.restarts.set(self._totals.restarts)
        run.loop_seconds.set(self.seconds)
        self._registry.add(run.drain())
        self._registry.add(self._publisher.metrics.drain())
        self._registry.add(self._trainer_delta(report))
        self._host.observe("on_step", step=step, report=report)
        self._drain()  # what an observer counts in this step is this step's
        self._log(Axis.TRAIN_STEP, step)
        self._log(Axis.WEIGHT_VERSION, self._version)
        self._log(Axis.WALL_SECONDS, round(self.seconds, 3))
        with self._file("steps.jsonl"):  # at last: its line says that the step was reported
            self._directory.add_step(step, times, paused)

    def evaluated(self, record: EvalRecord) -> None:
        """Log one settled eval point."""
        for name, one in record.sets.items():
            self._eval.reward.set(one.mean_reward, name)
            self._eval.failed.set(one.failed, name)
            self._eval.truncated.set(one.truncated, name)
            self._eval.length.set(one.mean_length, name)
            self._eval.version.set(one.version_mean, name)
            self._eval.mixed_version.set(one.mixed_version, name)
            for k, passed in one.pass_at.items():
                self._eval.pass_at.set(passed, f"{name}@{k}")
            self._totals.add_eval(name, one.mean_reward)
        self._totals.evaluations += record.step > 0
        if record.skipped:
            self._eval.skipped.set(1, record.skipped)
        self._eval.lag_steps.set(record.lag_steps)
        self._eval.duration_seconds.set(record.duration_seconds)
        self._eval.export_seconds.set(record.export_seconds)
        self._registry.add(self._eval.drain())
        self._host.observe("log_eval", record=record)
        self._host.observe("on_eval", record=record)
        with self._file("evals.jsonl"):  # after observers, which may take long: with its line the point is settled for good
            self._directory.add_eval(record)
        self._log(Axis.EVAL_STEP, record.step)

    @contextlib.contextmanager
    def _file(self, name: str) -> Iterator[None]:
        """Around adding to a file of the run directory: a disk that is full for a while costs no line; it is said once, and counted."""
        try:
            yield
        except OSError as cause:
            self.disk_failed(name)
            if name not in self._failing:
                self._failing.add(name)
                log.warning(
                    "%s can't be written: %s; what belongs into it is kept and written later", name, cause.strerror or cause
                )
        else:
            if name in self._failing:
                self._failing.discard(name)
                log.warning("%s is written again", name)

    def disk_failed(self, what: str) -> None:
        """Count something that found no room on the disk."""
        self._run.disk_failures.add(1, what)

    def _trace(self, finished: Sequence[Recorded]) -> None:
        if finished:
            with self._file("trace.jsonl"):
                self._directory.add_trace(finished)

    def _trainer_delta(self, report: StepReport) -> Delta:
        delta: Delta = {f"{self._trainer}/{name}": {"": value} for name, value in report.metrics.items()}
        for name, ages in report.by_age.items():
            delta[f"{self._trainer}/{name}"] = {str(age): value for age, value in ages.items()}
        return delta

    def _log(self, axis: Axis, step: float) -> None:
        values = self._registry.take(axis)
        if values:
            record = MetricRecord(axis=axis, step=step, time=time.time(), values=values)
            self._host.observe("log_metrics", record=record)
            self._host.observe("on_metrics", record=record)


class LoggerBridge(logging.Handler):
    """Hands the `asyncrl` logger's lines to the logger plugins."""

    def __init__(self, host: Host) -> None:
        super().__init__(logging.INFO)
        self._host = host
        self._busy = False

    def emit(self, record: logging.LogRecord) -> None:
        if self._busy:  # a failing logger warns through this very handler
            return
        self._busy = True
        try:
            self._host.observe("log_message", level=record.levelname.lower(), message=record.getMessage())
        finally:
            self._busy = False


def describe(summary: dict[str, Any], place: str) -> str:
    """Return the table that ends a run."""
    books, tokens, busy = summary["books"], summary["tokens"], summary["busy_seconds"]
    rows = [("outcome", summary["outcome"]), ("steps", str(summary["steps"])), ("wall time", f"{summary['wall_seconds']:.1f} s")]
    rows += [(f"eval {name}", f"{points['first']:.1%} -> {points['last']:.1%}") for name, points in summary["eval"].items()]
    dropped = ", ".join(f"{reason} {count}" for reason, count in books["dropped"].items()) or "none"
    rows += [
        ("groups", f"issued {books['issued']}, trained {books['trained']}, unfinished {books['unfinished']}; dropped: {dropped}"),
        ("tokens", f"trained {tokens['trained']:,}, dropped {tokens['dropped']:,}, unfinished {tokens['unfinished']:,}"),
        ("staleness", f"mean {summary['staleness']['mean']:.2f}, max {summary['staleness']['max']}"),
        ("busy", f"trainer {busy['trainer']:.1f} s, engines {busy['engines']:.1f} s"),
        ("step / limit", f"{summary['step_over_limit']:.2f}"),
        ("run directory", place),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"  {name:<{width}}  {value}" for name, value in rows)

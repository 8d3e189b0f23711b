"""What a logger is told over a whole run: the header, metrics on each axis, eval points that are late or skipped, messages, the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from asyncrl.evaluation.records import EvalRecord, SetResult
from asyncrl.host import Host
from asyncrl.loggers import MetricRecord, RunHeader
from asyncrl.metrics import Axis, Declared
from asyncrl.rollout.metrics import RolloutMetrics

STEPS = 8
RESULT = SetResult(
    mean_reward=0.5,
    num_prompts=4,
    num_samples=8,
    failed=0.0,
    truncated=0.125,
    mean_length=12.5,
    version_mean=2.0,
    mixed_version=0.0,
)


def declared() -> tuple[Declared, ...]:
    """Return the metrics that the run of these records has: core's own of the rollout side."""
    return tuple(RolloutMetrics.declared("rollout"))


def header(directory: Path) -> RunHeader:
    """Return the run's header."""
    return RunHeader("suite", directory, STEPS, {"steps": STEPS, "seed": 0, "buffer": {"name": "fifo"}}, declared())


def calls(directory: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (hook, arguments) in the order in which a controller calls a logger."""
    yield "log_start", {"header": header(directory)}
    yield "log_message", {"level": "info", "message": "the run has started"}
    for step in range(1, STEPS + 1):
        yield "log_metrics", {"record": _metrics(Axis.TRAIN_STEP, step, step)}
        yield "log_metrics", {"record": _metrics(Axis.WALL_SECONDS, step * 1.5, step)}
        if step % 2 == 0:
            yield "log_metrics", {"record": _metrics(Axis.WEIGHT_VERSION, step / 2, step)}
        if step == 5:
            yield "log_message", {"level": "warning", "message": "a wait took long"}
        if step == 6:  # of step 2, after the metrics of steps 3 to 6
            yield "log_eval", {"record": EvalRecord(2, 2, sets={"held-out": RESULT}, lag_steps=4, duration_seconds=3.5)}
        if step == 7:
            yield "log_eval", {"record": EvalRecord(4, 4, skipped="unhealthy")}
    yield "log_metrics", {"record": _metrics(Axis.EVAL_STEP, STEPS, STEPS)}
    yield "log_eval", {"record": EvalRecord(STEPS, STEPS, sets={"held-out": RESULT, "other": RESULT})}
    yield "log_message", {"level": "error", "message": "an engine died"}
    yield (
        "log_end",
        {"summary": {"outcome": "completed", "steps": STEPS, "seconds": 12.5, "books": {"issued": 32, "trained": 32}}},
    )


def log_a_run(host: Host, directory: Path, told: Iterable[tuple[str, dict[str, Any]]] | None = None) -> list[str]:
    """Tell every logger of a host; return the hooks that were called on one at least. Whatever one raises passes, chained."""
    called = []
    for hook, arguments in calls(directory) if told is None else told:
        if host.each(hook, **arguments):
            called.append(hook)
    return called


def _metrics(axis: Axis, step: float, at: int) -> MetricRecord:
    values = {one.name: float(at) for one in declared() if one.axis is axis and not one.label}
    return MetricRecord(axis, step, 1_700_000_000.0 + at, values)

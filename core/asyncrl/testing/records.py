"""What a logger is told over a whole run: the header, metrics on each axis, eval points that are late or skipped, messages, the end."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from asyncrl.errors import AsyncrlError
from asyncrl.evaluation.records import EvalRecord, EvalSample, SetResult
from asyncrl.host import Host
from asyncrl.loggers import MetricRecord, RunHeader
from asyncrl.metrics import Axis, Declared
from asyncrl.rollout.metrics import RolloutMetrics
from asyncrl.testing.leftovers import children, left_since

STEPS = 8
MANY = 300
SAMPLE = EvalSample("4 1 3 =", "1 3 4", 1.0, "completed")
RESULT = SetResult(
    mean_reward=0.5,
    num_prompts=4,
    num_samples=8,
    failed=0.0,
    truncated=0.125,
    mean_length=12.5,
    version_mean=2.0,
    mixed_version=0.0,
    samples=(SAMPLE,),
)

Call = tuple[str, str, dict[str, Any]]
"""What kind of call it is (``plain``, ``late``, ``not finite``, ``many``), the hook, its arguments."""


def declared() -> tuple[Declared, ...]:
    """Return the metrics of these records: core's own of the rollout side."""
    return tuple(RolloutMetrics.declared("rollout"))


def header(directory: Path) -> RunHeader:
    """Return the run's header."""
    return RunHeader("suite", directory, STEPS, {"steps": STEPS, "seed": 0, "buffer": {"name": "fifo"}}, declared())


def calls(directory: Path) -> Iterator[Call]:
    """Yield what a controller tells a logger, in its order."""
    yield "plain", "log_start", {"header": header(directory)}
    yield "plain", "log_message", {"level": "info", "message": "the run has started"}
    for step in range(1, STEPS + 1):
        yield "plain", "log_metrics", {"record": _metrics(Axis.TRAIN_STEP, step, step)}
        yield "plain", "log_metrics", {"record": _metrics(Axis.WALL_SECONDS, step * 1.5, step)}
        if step % 2 == 0:
            yield "plain", "log_metrics", {"record": _metrics(Axis.WEIGHT_VERSION, step / 2, step)}
    yield "plain", "log_message", {"level": "warning", "message": "a wait took long"}
    # Of step 2, after the metrics of all steps; and one that came to nothing.
    yield "late", "log_eval", {"record": EvalRecord(2, 2, sets={"held-out": RESULT}, lag_steps=4, duration_seconds=3.5)}
    yield "late", "log_eval", {"record": EvalRecord(4, 4, skipped="unhealthy")}
    for value in (float("nan"), float("inf"), -float("inf")):
        yield "not finite", "log_metrics", {"record": MetricRecord(Axis.TRAIN_STEP, STEPS + 1, 1.7e9, {_ONE: value})}
    for step in range(MANY):
        yield "many", "log_metrics", {"record": MetricRecord(Axis.TRAIN_STEP, STEPS + 2 + step, 1.7e9, {_ONE: 0.25})}
    last = STEPS + MANY + 2
    yield "plain", "log_metrics", {"record": _metrics(Axis.EVAL_STEP, last, last)}
    yield "plain", "log_eval", {"record": EvalRecord(last, last, sets={"held-out": RESULT, "other": RESULT})}
    yield "plain", "log_message", {"level": "error", "message": "an engine died"}
    yield "plain", "log_end", {"summary": {"outcome": "completed", "steps": last, "books": {"issued": 32, "trained": 32}}}


_ONE = "rollout/buffer_size"


def _metrics(axis: Axis, step: float, at: int) -> MetricRecord:
    values = {one.name: float(at) for one in declared() if one.axis is axis and not one.label}
    return MetricRecord(axis, step, 1_700_000_000.0 + at, values)


@dataclass
class Told:
    """How a logger took a run.

    Attributes:
        raised: (kind of call, hook, error) for each call that raised.
        changed: hooks that left their arguments other than they were.
        many_seconds: that the calls of kind ``many`` took in all.
        left: command lines of child processes that are still there after the end.
    """

    raised: list[tuple[str, str, str]] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    many_seconds: float = 0.0
    left: list[str] = field(default_factory=list)


def tell_a_run(host: Host, patience: float) -> Told:
    """Tell every logger of a host a whole run, in a directory that is gone afterwards; its processes may take `patience` seconds to end."""
    told, before_all = Told(), children()
    with TemporaryDirectory() as folder:
        for kind, hook, arguments in calls(Path(folder)):
            before = copy.deepcopy(arguments)
            started = time.perf_counter()
            try:
                host.each(hook, **arguments)
            except AsyncrlError as error:
                told.raised.append((kind, hook, str(error)))
            if kind == "many":
                told.many_seconds += time.perf_counter() - started
            elif kind != "not finite" and arguments != before:
                told.changed.append(hook)
        told.left = list(left_since(before_all, patience).values())
    return told

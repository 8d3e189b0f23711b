"""Which names W&B is told of, and the axis of each. No value ever goes against W&B's own step."""

from __future__ import annotations

from collections.abc import Iterable

from asyncrl import Axis
from asyncrl.metrics import Declared

SAMPLES = "eval/samples"
"""The table of completions."""
SAMPLE_COLUMNS = ("eval_step", "weight_version", "set", "prompt", "completion", "reward", "status")


def series(metric: Declared) -> list[str]:
    """Return the names under which a metric is logged; none where its labels make them, which are known when a value comes."""
    if metric.label:
        return []
    if metric.kind == "distribution":
        return [f"{metric.name}/{end}" for end in ("mean", "min", "max")]
    return [metric.name]


def definitions(metrics: Iterable[Declared]) -> list[tuple[str, str]]:
    """Return (name, name of its axis) of everything whose name is known from the start, the axes themselves left out."""
    found = {name: metric.axis.value for metric in metrics for name in series(metric)}
    return [*found.items(), (SAMPLES, Axis.EVAL_STEP.value)]

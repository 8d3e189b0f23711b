"""`metrics.md`: every metric that core and the first-party plugins declare."""

from __future__ import annotations

from asyncrl.metrics import Declared
from asyncrl.runtime.reporter import declared_metrics

from generator.markdown import page, table
from generator.plugins import loaded

HEAD = """\
A counter is a sum over the run so far, a gauge the latest value. A distribution is logged as `NAME/mean`, `NAME/min` and
`NAME/max` of the values since the last record. `<label>` in a name stands for the label's value; each is a series of its own.
Which of them answers which question: [Reading a run](../reading-a-run.md)."""


def metrics_page() -> str:
    lines = ["", HEAD]
    sections: dict[str, list[Declared]] = {}
    for metric in declared_metrics([kind for _, kind in loaded()]):
        sections.setdefault(metric.name.rpartition("/")[0], []).append(metric)
    for prefix, metrics in sections.items():
        rows = [(f"`{series(metric)}`", metric.kind, metric.unit, f"`{metric.axis.value}`", metric.help) for metric in metrics]
        lines += ["", f"## {prefix}", *table(("metric", "kind", "unit", "axis", "what"), rows)]
    return page("Metrics", lines)


def series(metric: Declared) -> str:
    return f"{metric.name}/<{metric.label}>" if metric.label else metric.name

"""Writes TensorBoard event files into the run directory, each metric against the step of its own axis."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from asyncrl import Axis, EvalRecord, EvalSample, MetricRecord, Plugin, RunHeader, hookimpl
from asyncrl.metrics import Declared

if TYPE_CHECKING:
    from asyncrl_tensorboard.events import EventFile


class TensorBoard(Plugin):
    """TensorBoard has one step a series, so each series' step is its axis: train steps, versions, eval steps, or whole seconds."""

    hook_api = 1
    _file: EventFile | None = None

    @hookimpl
    def log_start(self, header: RunHeader) -> None:
        from asyncrl_tensorboard.events import EventFile

        self._file = EventFile(header.directory, {name: text for metric in header.metrics for name, text in _described(metric)})
        self._file.text("config", f"```\n{json.dumps(header.options, indent=2)}\n```")

    @hookimpl
    def log_metrics(self, record: MetricRecord) -> None:
        if self._file is not None:
            step = round(record.step) if record.axis is Axis.WALL_SECONDS else int(record.step)
            self._file.scalars(record.values, step, record.time)

    @hookimpl
    def log_eval(self, record: EvalRecord) -> None:
        """Write a skip's reason and the completions as text; the point's numbers come as metrics."""
        if self._file is None:
            return
        if record.skipped:
            why = record.detail.get("why")
            self._file.text("eval/skips", f"skipped: {record.skipped}" + (f": {why}" if why else ""), record.step)
        for name, one in record.sets.items():
            for index, sample in enumerate(one.samples):
                self._file.text(f"eval/samples/{name}/{index}", _as_markdown(sample), record.step)

    @hookimpl
    def log_end(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _described(metric: Declared) -> list[tuple[str, str]]:
    ends = ("/mean", "/min", "/max") if metric.kind == "distribution" else ("",)
    return [(metric.name + end, f"{metric.help} ({metric.unit}, over {metric.axis.value})") for end in ends]


def _as_markdown(sample: EvalSample) -> str:
    """Indented, a text is shown as it is, whatever is in it."""
    blocks = [text.replace("\n", "\n    ") for text in (sample.prompt, sample.completion)]
    return f"prompt\n\n    {blocks[0]}\n\nreward {sample.reward:g}, {sample.status}\n\n    {blocks[1]}\n"

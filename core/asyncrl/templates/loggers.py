"""Writes a CSV file into the run directory: one row a value, which spreadsheets and pandas read as it is."""

from __future__ import annotations

import csv
from typing import TextIO

from asyncrl import Axis, Counter, MetricRecord, MetricSet, Plugin, PluginOptions, RunHeader, hookimpl
from pydantic import Field

HEAD = ("axis", "step", "time", "name", "value")


class TemplateNameOptions(PluginOptions):
    file_name: str = Field("metrics.csv", pattern=r"^[^/]+$", description="Name of the file in the run directory.")
    only: tuple[str, ...] = Field((), description="Beginnings of the names to write, such as train/; none stands for all.")


class TemplateNameMetrics(MetricSet):
    rows = Counter("Rows written", unit="rows", axis=Axis.WALL_SECONDS)


class TemplateName(Plugin):
    """Each record is flushed, so that a killed run keeps its rows; a resumed run appends to them."""

    hook_api = 1
    Options = TemplateNameOptions
    Metrics = TemplateNameMetrics
    options: TemplateNameOptions
    metrics: TemplateNameMetrics
    _file: TextIO | None = None

    @hookimpl
    def log_start(self, header: RunHeader) -> None:
        path = header.directory / self.options.file_name
        new = not path.exists()
        self._file = path.open("a", newline="", encoding="utf-8")
        if new:
            csv.writer(self._file).writerow(HEAD)

    @hookimpl
    def log_metrics(self, record: MetricRecord) -> None:
        if self._file is None:
            return
        names = [name for name in record.values if name.startswith(self.options.only or "")]
        rows = [(record.axis.value, record.step, record.time, name, record.values[name]) for name in names]
        csv.writer(self._file).writerows(rows)
        self._file.flush()
        self.metrics.rows.add(len(rows))

    @hookimpl
    def log_end(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

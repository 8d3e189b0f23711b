"""Loggers that break one rule each."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any, TextIO

from asyncrl import Axis, EvalRecord, MetricRecord, Plugin, RunHeader, hookimpl

from broken.breaking import breaks


@breaks("")
class Right(Plugin):
    file: TextIO | None = None
    steps = 0.0

    @hookimpl
    def log_start(self, header: RunHeader) -> None:
        self.file = (header.directory / "log.txt").open("w")

    @hookimpl
    def log_metrics(self, record: MetricRecord) -> None:
        if self.file is not None:
            self.write(record)

    def write(self, record: MetricRecord) -> None:
        assert self.file is not None
        self.steps = max(self.steps, record.step)
        self.file.write(json.dumps(dict(record.values)) + "\n")

    @hookimpl
    def log_eval(self, record: EvalRecord) -> None: ...

    @hookimpl
    def log_message(self, level: str, message: str) -> None: ...

    @hookimpl
    def log_end(self, summary: dict[str, Any]) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None


@breaks("test_it_takes_a_whole_run")
class KnowsNoEvalAxis(Right):
    def write(self, record: MetricRecord) -> None:
        if record.axis is Axis.EVAL_STEP:
            raise KeyError(record.axis)


@breaks("test_it_takes_late_and_skipped_eval_points")
class WantsGrowingSteps(Right):
    @hookimpl
    def log_eval(self, record: EvalRecord) -> None:
        if record.step < self.steps:
            raise ValueError("steps must grow")


@breaks("test_it_takes_values_that_are_not_finite")
class WantsWholeNumbers(Right):
    def write(self, record: MetricRecord) -> None:
        for value in record.values.values():
            int(value)


@breaks("test_it_leaves_records_as_they_are")
class EmptiesRecords(Right):
    def write(self, record: MetricRecord) -> None:
        record.values.clear()  # type: ignore[attr-defined]


@breaks("test_it_keeps_up", most_seconds=1.0)
class Dawdles(Right):
    def write(self, record: MetricRecord) -> None:
        time.sleep(0.005)


@breaks("test_it_leaves_no_process", leaving_seconds=0.5)
class LeavesAProcess(Right):
    @hookimpl
    def log_start(self, header: RunHeader) -> None:
        super().log_start(header)
        self.process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(8)"])


@breaks("test_it_ends_whenever_it_is_told_to")
class EndsOnce(Right):
    ended = False

    @hookimpl
    def log_end(self, summary: dict[str, Any]) -> None:
        super().log_end(summary)
        if self.ended:
            raise RuntimeError("it has ended already")
        self.ended = True


@breaks("test_a_disk_that_fails_is_told_once")
class ComplainsAboutEveryRecord(Right):
    @hookimpl
    def log_metrics(self, record: MetricRecord) -> None:
        self.write(record)

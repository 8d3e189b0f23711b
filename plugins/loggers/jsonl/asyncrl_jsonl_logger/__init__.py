"""Writes `metrics.jsonl` into the run directory, one line a record, readable while the run goes on."""

from __future__ import annotations

from typing import BinaryIO

import orjson
from asyncrl import MetricRecord, Plugin, RunHeader, hookimpl

FILE_NAME = "metrics.jsonl"


class JsonLines(Plugin):
    """A line is `{"axis": …, "step": …, "time": …, "values": {…}}`; a value that is not finite is `null`.

    Each line is flushed as it is written, so that a killed run keeps all but the line being written. A directory that has the file
    already (a resumed run) is appended to.
    """

    _file: BinaryIO | None = None

    @hookimpl
    def log_start(self, header: RunHeader) -> None:
        self._file = (header.directory / FILE_NAME).open("ab")

    @hookimpl
    def log_metrics(self, record: MetricRecord) -> None:
        if self._file is None:
            return
        line = {"axis": record.axis.value, "step": record.step, "time": record.time, "values": dict(record.values)}
        self._file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY))
        self._file.flush()

    @hookimpl
    def log_end(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

"""Writes `metrics.jsonl` into the run directory, one line a record, readable while the run goes on."""

from __future__ import annotations

import orjson
from asyncrl import Axis, MetricRecord, Plugin, RunHeader, hookimpl
from asyncrl.line_file import LineFile

FILE_NAME = "metrics.jsonl"


class JsonLines(Plugin):
    """A line is `{"axis": …, "step": …, "time": …, "values": {…}}`; a value that is not finite is `null`.

    Each line is written at once and whole, so that a killed run keeps all of them; what a full disk does not take is written later. A
    directory that has the file already (a resumed run) is appended to, after what the run goes on from.
    """

    hook_api = 1
    _file: LineFile | None = None

    @hookimpl
    def log_start(self, header: RunHeader) -> None:
        path = header.directory / FILE_NAME
        file = LineFile(path)
        if header.resumed_step >= 0:
            keep_until(file, header.resumed_step)
        path.touch()  # what can't be written at all is said now
        self._file = file

    @hookimpl
    def log_metrics(self, record: MetricRecord) -> None:
        if self._file is None:
            return
        line = {"axis": record.axis.value, "step": record.step, "time": record.time, "values": dict(record.values)}
        self._file.add(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY))

    @hookimpl
    def log_end(self) -> None:
        if self._file is not None:
            self._file.flush()
            self._file = None


def keep_until(file: LineFile, step: int) -> None:
    """Drop what comes after a train step, and the eval points that belong to later ones. A line that was left broken goes too."""
    last = 0.0

    def belongs(text: bytes) -> bool:
        nonlocal last
        try:
            line = orjson.loads(text) if text.endswith(b"\n") else {}
        except orjson.JSONDecodeError:
            line = {}
        if not line:
            return False
        if line["axis"] == Axis.TRAIN_STEP:
            last = line["step"]
        belonging: float = line["step"] if line["axis"] == Axis.EVAL_STEP else last
        return belonging <= step

    file.keep(belongs)

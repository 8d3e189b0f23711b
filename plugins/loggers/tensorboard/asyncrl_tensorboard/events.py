"""An event file as TensorBoard reads it: one record an event, on disk when the call returns."""

from __future__ import annotations

import errno
import io
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.summary.writer.record_writer import RecordWriter


class EventFile:
    """A new event file of a directory.

    Args:
        descriptions: what a series means, by its name; of a labelled metric by the name before the label.

    Raises:
        OSError: from every call, when the disk can't take the whole record; the file stays readable.
    """

    def __init__(self, directory: Path, descriptions: Mapping[str, str]) -> None:
        now = time.time()
        self._descriptions = descriptions
        self._described: set[str] = set()
        self._file = _WholeRecords(directory / f"events.out.tfevents.{now:.6f}.{socket.gethostname()}", "ab")
        self._records = RecordWriter(self._file)
        self._write(Event(wall_time=now, file_version="brain.Event:2"))

    def scalars(self, values: Mapping[str, float], step: int, seconds: float) -> None:
        """Write values at one step; `seconds` is since the epoch."""
        summary = Summary(value=[self._scalar(name, value) for name, value in values.items()])
        self._write(Event(wall_time=seconds, step=step, summary=summary))

    def text(self, name: str, markdown: str, step: int = 0) -> None:
        """Write a text, which TensorBoard renders as Markdown."""
        tensor = TensorProto(dtype=DT_STRING, string_val=[markdown.encode()], tensor_shape=TensorShapeProto())
        metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        summary = Summary(value=[Summary.Value(tag=name, tensor=tensor, metadata=metadata)])
        self._write(Event(wall_time=time.time(), step=step, summary=summary))

    def close(self) -> None:
        self._records.close()

    def _scalar(self, name: str, value: float) -> Summary.Value:
        if name in self._described:
            return Summary.Value(tag=name, simple_value=value)
        self._described.add(name)
        text = self._descriptions.get(name) or self._descriptions.get(name.rpartition("/")[0], "")
        return Summary.Value(tag=name, simple_value=value, metadata=SummaryMetadata(summary_description=text))

    def _write(self, event: Event) -> None:
        self._records.write(event.SerializeToString())


class _WholeRecords(io.FileIO):
    """Takes a record whole or not at all: TensorBoard reads no further than a broken one."""

    def write(self, data: bytes) -> int:  # type: ignore[override]
        size = self.seek(0, io.SEEK_END)  # the position is not where the file ends once something was taken back
        written = super().write(data)
        if written != len(data):  # a full disk takes a part of it
            self.truncate(size)
            raise OSError(errno.ENOSPC, "no space left on the disk")
        return written

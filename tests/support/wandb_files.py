"""What W&B wrote in offline mode, read with W&B's own reader."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wandb.proto.wandb_internal_pb2 import Record
from wandb.sdk.internal.datastore import DataStore


@dataclass
class Written:
    """One offline run.

    `rows` are what was logged, in order; `axes` gives a name's step metric, exact names and those that a pattern covered alike.
    """

    run_id: str = ""
    name: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    axes: dict[str, str] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    kinds: set[str] = field(default_factory=set)
    project: str = ""
    exit_code: int | None = None

    def series(self, name: str, axis: str) -> list[tuple[float, Any]]:
        """(step on the axis, value) of every row that has the name."""
        return [(row[axis], row[name]) for row in self.rows if name in row]


def offline_file(directory: Path, pattern: str = "offline-run-*") -> Path:
    (found,) = directory.glob(f"wandb/{pattern}/run-*.wandb")
    return found


def read_offline(directory: Path, pattern: str = "offline-run-*") -> Written:
    """Read the one offline run below `directory`."""
    store, written = DataStore(), Written()
    store.open_for_scan(str(offline_file(directory, pattern)))
    while (data := store.scan_data()) is not None:
        record = Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        written.kinds.add(kind)
        if kind == "run":
            run = record.run
            written.run_id, written.name, written.project = run.run_id, run.display_name, run.project
            written.tags = list(run.tags)
            written.config = {item.key: json.loads(item.value_json) for item in run.config.update}
        elif kind == "history":
            written.rows.append(_tree(record.history.item))
        elif kind == "metric" and record.metric.step_metric:
            written.axes[record.metric.name or record.metric.glob_name] = record.metric.step_metric
        elif kind == "summary":
            written.summary |= _tree(record.summary.update)
        elif kind == "exit":
            written.exit_code = record.exit.exit_code
    store._fp.close()
    return written


def _tree(items: Iterable[Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for item in items:
        *path, last = item.nested_key or [item.key]
        place = tree
        for key in path:
            place = place.setdefault(key, {})
        place[last] = json.loads(item.value_json)
    return tree

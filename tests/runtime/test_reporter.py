"""What the controller tells of an eval point reaches its file, also when the disk is full for a while."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from asyncrl.evaluation.records import EvalRecord
from asyncrl.host import Host
from asyncrl.metrics import Registry
from asyncrl.runtime.directory import RunDirectory
from asyncrl.runtime.reporter import Reporter, declared_metrics
from asyncrl.runtime.summary import Totals


class Served:
    version = 0


def make(directory: RunDirectory) -> Reporter:
    """A reporter that is only told of eval points: it asks neither rollout nor publisher for anything."""
    return Reporter(
        Host([]), Registry(declared_metrics([])), directory, cast(Any, None), cast(Any, Served()), Totals(), "trainer/none"
    )


def test_points_that_found_no_room_on_the_disk_are_written_with_the_next_one(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path, "one")
    directory.create("")
    reporter = make(directory)
    in_the_way = directory.path / "evals.jsonl"
    in_the_way.mkdir()  # as good as a full disk: it can't be appended to
    reporter.evaluated(EvalRecord(2, 2))
    reporter.evaluated(EvalRecord(4, 4, skipped="busy"))
    in_the_way.rmdir()
    reporter.evaluated(EvalRecord(6, 6))
    lines = [json.loads(line) for line in in_the_way.read_text().splitlines()]
    assert [(line["step"], line["skipped"]) for line in lines] == [(2, ""), (4, "busy"), (6, "")]
    directory.lock.release()

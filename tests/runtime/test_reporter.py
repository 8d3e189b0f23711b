"""What the controller tells of an eval point reaches its file, also when the disk is full for a while."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, cast

import pytest
from asyncrl import Plugin, PluginOptions, RunFacts, hookimpl
from asyncrl.evaluation.records import EvalRecord
from asyncrl.host import Active, Host
from asyncrl.metrics import Registry
from asyncrl.runtime.directory import RunDirectory
from asyncrl.runtime.reporter import Reporter, declared_metrics
from asyncrl.runtime.summary import Totals


class Served:
    version = 0


class Killed(Plugin):
    """An observer at whose work the run is killed."""

    hook_api = 1

    @hookimpl
    def on_eval(self) -> None:
        raise KeyboardInterrupt


def make(directory: RunDirectory, *plugins: Active) -> Reporter:
    """A reporter that is only told of eval points: it asks neither rollout nor publisher for anything."""
    registry = Registry(declared_metrics([]))
    return Reporter(Host(plugins), registry, directory, cast(Any, None), cast(Any, Served()), Totals(), "trainer/none", 0.0)


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


def test_a_point_whose_metrics_were_not_logged_yet_is_none_in_the_file(tmp_path: Path) -> None:
    """A run that goes on would take it as settled, and its metrics would be missing for ever."""
    directory = RunDirectory(tmp_path, "one")
    directory.create("")
    killed = Active(
        "observers",
        "killed",
        "some",
        "1",
        Killed(PluginOptions(), RunFacts(batch_size=4, group_size=2, max_concurrent_samples=8, steps=6)),
    )
    with pytest.raises(KeyboardInterrupt):
        make(directory, killed).evaluated(EvalRecord(2, 2))
    assert directory.lines("evals.jsonl") == []
    directory.lock.release()


def test_a_full_disk_is_said_once_and_counted_and_costs_no_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = RunDirectory(tmp_path, "one")
    directory.create("")
    reporter = make(directory)
    in_the_way = directory.path / "trace.jsonl"
    in_the_way.mkdir()
    with caplog.at_level(logging.WARNING, "asyncrl"):
        for number in range(3):
            reporter._trace([(number, (5,), (), (0.5,))])
        in_the_way.rmdir()
        reporter._trace([(3, (5,), (), (0.5,))])
        reporter._trace([(4, (5,), (), (0.5,))])
    assert [line["prompt_id"] for line in directory.lines("trace.jsonl")] == [0, 1, 2, 3, 4]
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert said[0].startswith("trace.jsonl can't be written: ") and said[1] == "trace.jsonl is written again"
    assert reporter._run.drain()["run/disk_failures"] == {"trace.jsonl": 3}
    directory.lock.release()

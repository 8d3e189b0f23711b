"""The jsonl logger: what it writes can be read at any moment, by anything that reads JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from asyncrl import Axis, MetricRecord, PluginOptions, RunFacts, RunHeader
from asyncrl.host import Active, Host
from asyncrl_jsonl_logger import JsonLines

FACTS = RunFacts(batch_size=2, group_size=2, max_concurrent_samples=4, steps=3)


def started(directory: Path, resumed_step: int = -1) -> Host:
    host = Host([Active("loggers", "jsonl", "asyncrl-plugin-jsonl-logger", "0.1.0", JsonLines(PluginOptions(), FACTS))])
    host.observe("log_start", header=RunHeader("run", directory, 3, {}, (), resumed_step))
    return host


def lines(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def record(step: float, **values: float) -> MetricRecord:
    return MetricRecord(Axis.TRAIN_STEP, step, 1000.5, values)


def test_each_record_is_on_disk_as_one_line_when_the_call_returns(tmp_path: Path) -> None:
    host = started(tmp_path)
    host.observe("log_metrics", record=record(1, a=0.5, b=2))
    assert lines(tmp_path) == [{"axis": "train_step", "step": 1, "time": 1000.5, "values": {"a": 0.5, "b": 2}}]
    host.observe("log_metrics", record=record(2, a=1.5))
    assert [line["step"] for line in lines(tmp_path)] == [1, 2]
    host.observe("log_end", summary={})


def test_a_value_that_is_not_finite_is_null(tmp_path: Path) -> None:
    host = started(tmp_path)
    host.observe("log_metrics", record=record(1, a=float("nan"), b=float("inf"), c=1.0))
    host.observe("log_end", summary={})
    assert lines(tmp_path)[0]["values"] == {"a": None, "b": None, "c": 1.0}


def test_a_resumed_run_goes_on_in_the_same_file(tmp_path: Path) -> None:
    for step in (1, 2):
        host = started(tmp_path)
        host.observe("log_metrics", record=record(step))
        host.observe("log_end", summary={})
    assert [line["step"] for line in lines(tmp_path)] == [1, 2]


def test_a_run_that_goes_on_from_a_step_tells_what_came_after_it_once(tmp_path: Path) -> None:
    host = started(tmp_path)
    told = [
        *((Axis.EVAL_STEP, 0.0), (Axis.TRAIN_STEP, 1.0), (Axis.WEIGHT_VERSION, 1.0), (Axis.WALL_SECONDS, 4.5)),
        *((Axis.EVAL_STEP, 2.0), (Axis.TRAIN_STEP, 2.0), (Axis.WEIGHT_VERSION, 1.0), (Axis.WALL_SECONDS, 5.5)),
        *(
            (Axis.EVAL_STEP, 3.0),
            (Axis.TRAIN_STEP, 3.0),
            (Axis.EVAL_STEP, 1.0),
            (Axis.WEIGHT_VERSION, 2.0),
            (Axis.WALL_SECONDS, 6.5),
        ),
    ]
    for axis, step in told:
        host.observe("log_metrics", record=MetricRecord(axis, step, 1000.5, {"a": 1.0}))
    host.observe("log_end", summary={})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('\0\0\n{"axis": "train_step", "step": 4, "ti')  # the power was lost, killed while it wrote
    host = started(tmp_path, resumed_step=2)
    assert [(line["axis"], line["step"]) for line in lines(tmp_path)] == [*told[:8], (Axis.EVAL_STEP, 1)]
    host.observe("log_metrics", record=record(3))
    assert lines(tmp_path)[-1]["step"] == 3
    host.observe("log_end", summary={})

"""The tensorboard logger: what it writes is read back with TensorBoard's own reader."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from asyncrl import Axis, EvalRecord, EvalSample, MetricRecord, PluginOptions, RunFacts, RunHeader, SetResult
from asyncrl.host import Active, Host
from asyncrl.metrics import Declared
from asyncrl_tensorboard import TensorBoard
from small_disk import fill, small_disk
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

FACTS = RunFacts(batch_size=2, group_size=2, max_concurrent_samples=4, steps=3)
METRICS = (
    Declared("run/speed", "gauge", "How fast", "tokens/s", Axis.TRAIN_STEP, ""),
    Declared("eval/reward", "gauge", "Mean reward", "reward", Axis.EVAL_STEP, "set"),
)


def started(directory: Path) -> Host:
    host = Host([Active("loggers", "tensorboard", "asyncrl-plugin-tensorboard", "0.1.0", TensorBoard(PluginOptions(), FACTS))])
    host.observe("log_start", header=RunHeader("run", directory, 3, {"steps": 3, "buffer": {"name": "fifo"}}, METRICS))
    return host


def read(directory: Path) -> EventAccumulator:
    return EventAccumulator(str(directory)).Reload()


def scalars(directory: Path, name: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in read(directory).Scalars(name)]


def texts(directory: Path, name: str) -> list[tuple[int, str]]:
    return [(event.step, event.tensor_proto.string_val[0].decode()) for event in read(directory).Tensors(name)]


def test_each_series_has_the_steps_of_its_own_axis(tmp_path: Path) -> None:
    host = started(tmp_path)
    host.observe("log_metrics", record=MetricRecord(Axis.TRAIN_STEP, 1, 1000.5, {"run/speed": 2.0}))
    assert scalars(tmp_path, "run/speed") == [(1, 2.0)], "on disk when the call returns"
    host.observe("log_metrics", record=MetricRecord(Axis.WALL_SECONDS, 1.6, 1000.5, {"run/loop_seconds": 1.6}))
    host.observe("log_metrics", record=MetricRecord(Axis.WEIGHT_VERSION, 7, 1000.5, {"publication/bytes": 5}))
    host.observe("log_end", summary={})
    assert scalars(tmp_path, "run/loop_seconds") == [(2, pytest.approx(1.6))]
    assert scalars(tmp_path, "publication/bytes") == [(7, 5.0)]
    assert host.metrics.drain() == {}, "no call failed"


def test_eval_points_that_come_late_or_twice_and_skips_are_all_there(tmp_path: Path) -> None:
    """Field report 25."""
    host = started(tmp_path)
    for step in (10, 20):
        host.observe("log_metrics", record=MetricRecord(Axis.TRAIN_STEP, step, 1000.0, {"run/speed": 1.0}))
    for step, reward in ((20, 0.5), (5, 0.25), (20, 0.75)):
        host.observe("log_metrics", record=MetricRecord(Axis.EVAL_STEP, step, 1000.0, {"eval/reward/held-out": reward}))
    host.observe("log_eval", record=EvalRecord(15, 3, skipped="busy"))
    host.observe("log_eval", record=EvalRecord(20, 4, skipped="unhealthy", detail={"why": "nothing answers"}))
    host.observe("log_metrics", record=MetricRecord(Axis.EVAL_STEP, 5, 1000.0, {"eval/pass_at/held-out@4": 0.75}))
    host.observe("log_end", summary={})
    assert scalars(tmp_path, "eval/pass_at/held-out@4") == [(5, 0.75)]
    assert scalars(tmp_path, "eval/reward/held-out") == [(20, 0.5), (5, 0.25), (20, 0.75)]
    assert texts(tmp_path, "eval/skips") == [(15, "skipped: busy"), (20, "skipped: unhealthy: nothing answers")]


def test_options_completions_and_meanings_are_texts(tmp_path: Path) -> None:
    host = started(tmp_path)
    samples = (EvalSample("3 1 2 =", "1 2\n3", 0.5, "completed"),)
    result = SetResult(0.5, 1, 1, 0.0, 0.0, 3.0, 0.0, 0.0, samples)
    host.observe("log_eval", record=EvalRecord(5, 3, sets={"held-out": result}))
    host.observe("log_metrics", record=MetricRecord(Axis.EVAL_STEP, 5, 1000.0, {"eval/reward/held-out": 0.5}))
    host.observe("log_end", summary={})
    ((step, text),) = texts(tmp_path, "eval/samples/held-out/0")
    assert step == 5
    assert all(part in text for part in ("    3 1 2 =", "    1 2\n    3", "reward 0.5, completed"))
    assert '"name": "fifo"' in texts(tmp_path, "config")[0][1]
    described = read(tmp_path).SummaryMetadata("eval/reward/held-out").summary_description
    assert described == "Mean reward (reward, over eval_step)"


def test_a_resumed_run_goes_on_in_the_same_directory(tmp_path: Path) -> None:
    for step in (1, 2):
        host = started(tmp_path)
        host.observe("log_metrics", record=MetricRecord(Axis.TRAIN_STEP, step, 1000.0 + step, {"run/speed": 1.0}))
        host.observe("log_end", summary={})
    assert scalars(tmp_path, "run/speed") == [(1, 1.0), (2, 1.0)]


def test_a_directory_that_takes_no_file_costs_the_logger_alone(tmp_path: Path) -> None:
    """Field report 38."""
    host = started(tmp_path / "missing")
    host.observe("log_metrics", record=MetricRecord(Axis.TRAIN_STEP, 1, 1000.0, {"run/speed": 1.0}))
    host.observe("log_end", summary={})
    assert host.metrics.drain() == {"plugins/observer_failures": {"tensorboard": 1}}


def test_a_full_disk_costs_records_that_are_counted_and_those_after_it_are_there(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 64) as disk:
        host = started(disk)
        host.observe("log_metrics", record=MetricRecord(Axis.TRAIN_STEP, 1, 1000.0, {"run/speed": 1.0}))
        ballast = fill(disk)
        for step in range(2, 200):
            host.observe("log_metrics", record=MetricRecord(Axis.TRAIN_STEP, step, 1000.0, {"run/speed": 1.0}))
        failed = host.metrics.drain()["plugins/observer_failures"]["tensorboard"]
        ballast.unlink()
        host.observe("log_metrics", record=MetricRecord(Axis.TRAIN_STEP, 200, 1000.0, {"run/speed": 2.0}))
        fill(disk)
        host.observe("log_end", summary={})
        assert scalars(disk, "run/speed") == [*((step, 1.0) for step in range(1, 200 - failed)), (200, 2.0)]
        assert failed > 0 and host.metrics.drain() == {}


def test_a_disk_that_is_full_at_the_start_costs_the_logger_alone(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 64) as disk:
        fill(disk)
        host = started(disk)
        host.observe("log_metrics", record=MetricRecord(Axis.TRAIN_STEP, 1, 1000.0, {"run/speed": 1.0}))
        host.observe("log_end", summary={})
        assert host.metrics.drain() == {"plugins/observer_failures": {"tensorboard": 1}}


def test_writing_loads_neither_torch_nor_tensorflow(tmp_path: Path) -> None:
    code = (
        "import sys, asyncrl_tensorboard; before = 'tensorboard' in sys.modules; import asyncrl_tensorboard.events;"
        "print(before, sorted({'torch', 'tensorflow', 'grpc'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "False []\n", done.stderr

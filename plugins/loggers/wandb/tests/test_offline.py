"""What reaches W&B: one offline run of everything that can be logged, read back with W&B's own reader."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asyncrl import Axis, EvalRecord, EvalSample, MetricRecord, SetResult
from asyncrl.metrics import KINDS, Declared, Registry
from asyncrl.plugins import discover, load
from asyncrl.runtime.reporter import declared_metrics
from asyncrl_wandb import WandbOptions
from pydantic import ValidationError
from wandb_files import Written, offline_file, read_offline
from wandb_logger import KEY, logger, own_environment

LABELS = ("held-out", "held-out@4", "math.500", "deep/er", "0")
STATES: dict[str, Any] = {"counter": 3, "gauge": 0.5, "distribution": [2, 3.0, 1.0, 2.0]}
STEPS = {axis: 7 + number for number, axis in enumerate(Axis)}
POINTS = [(20, 0.5), (5, 0.25), (20, 0.75), (0, 1.0)]
SAMPLES = (EvalSample("3 1 2 =", "1 2 3", 1.0, "completed"), EvalSample("2 1 =", "", 0.0, "failed"))
RESULT = SetResult(0.5, 1, 1, 0.0, 0.0, 3.0, 0.0, 0.0, SAMPLES)
CONFIG = {"steps": 3, "buffer": {"name": "fifo", "capacity_factor": 2.0}, "model": None}


@pytest.fixture(scope="module")
def declared() -> list[Declared]:
    """Every metric of core and of every first-party plugin."""
    found = [found for found in discover().plugins if found.distribution.startswith("asyncrl-plugin-")]
    return declared_metrics([load(one) for one in found])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def written(place: Path, declared: list[Declared]) -> Iterator[Written]:
    with own_environment(place / "home"), pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_API_KEY", KEY)
        patch.setenv("HF_TOKEN", "hf_another-s3cret")
        host, plugin = logger(place, declared, CONFIG, project="mine", tags=("a", "b"), run_id="resumed-1")
        registry = Registry(declared)
        registry.add({one.name: {label: STATES[one.kind] for label in labels(one)} for one in declared})
        for axis, step in STEPS.items():
            host.observe("log_metrics", record=MetricRecord(axis, step, 1000.5, registry.take(axis)))
        host.observe("log_metrics", record=MetricRecord(Axis.EVAL_STEP, 3, 1001.0, {"eval/reward/a*b": 0.5}))
        for number, (step, reward) in enumerate(POINTS):
            host.observe("log_metrics", record=MetricRecord(Axis.TRAIN_STEP, 100 + number, 1001.0, {"run/late": 1.0}))
            host.observe("log_metrics", record=MetricRecord(Axis.EVAL_STEP, step, 1001.0, {"eval/reward/late": reward}))
        host.observe("log_eval", record=EvalRecord(5, 4, sets={"held-out": RESULT}))
        host.observe("log_eval", record=EvalRecord(10, 9, sets={"held-out": RESULT}))
        host.observe("log_eval", record=EvalRecord(15, 14, skipped="gone"))
        host.observe("log_metrics", record=MetricRecord(Axis.EVAL_STEP, 15, 1001.0, {"eval/skipped/gone": 1}))
        host.observe("log_end", summary={"outcome": "completed", "books": {"issued": 4}})
        assert host.metrics.drain() == {}, "no call failed"
        assert plugin.metrics.drain()["loggers/wandb/dropped"] == {"queue_full": 0, "failed": 0}
    yield read_offline(place)


def labels(metric: Declared) -> tuple[str, ...]:
    return LABELS if metric.label else ("",)


def test_every_declared_metric_of_every_plugin_arrives_under_its_own_axis(written: Written, declared: list[Declared]) -> None:
    assert len(declared) > 50
    for one in declared:
        for label in labels(one):
            values = KINDS[one.kind].values(f"{one.name}/{label}" if label else one.name, STATES[one.kind])
            for name, value in values.items():
                assert written.series(name, one.axis.value) == [(STEPS[one.axis], value)], name
                assert written.axes[name] == one.axis.value, name
    assert all(row["_timestamp"] >= 1000.5 for row in written.rows if "train_step" in row), "when it was, not when it was sent"


def test_points_that_come_late_or_twice_at_one_step_are_all_there(written: Written) -> None:
    """Field report 25."""
    assert written.series("eval/reward/late", "eval_step") == POINTS
    assert written.axes["eval/reward/late"] == "eval_step"
    assert [step for step, _ in written.series("run/late", "train_step")] == [100, 101, 102, 103]
    own_steps = [row["_step"] for row in written.rows]
    assert own_steps == sorted(set(own_steps)), "a row whose own step is not above the one before would be dropped"


def test_a_label_that_wandb_would_take_for_a_pattern_is_logged_all_the_same(written: Written) -> None:
    assert written.series("eval/reward/a*b", "eval_step") == [(3, 0.5)]


def test_a_skip_arrives_with_its_reason_at_its_step(written: Written) -> None:
    assert written.series("eval/skipped/gone", "eval_step") == [(15, 1)]


def test_completions_are_a_table_at_the_step_of_their_point(written: Written, place: Path) -> None:
    tables = written.series("eval/samples", "eval_step")
    assert [step for step, _ in tables] == [5, 10]
    assert written.axes["eval/samples"] == "eval_step"
    table = json.loads((offline_file(place).parent / "files" / tables[1][1]["path"]).read_text())
    assert table["columns"] == ["eval_step", "weight_version", "set", "prompt", "completion", "reward", "status"]
    assert table["data"] == [
        [10, 9, "held-out", "3 1 2 =", "1 2 3", 1.0, "completed"],
        [10, 9, "held-out", "2 1 =", "", 0.0, "failed"],
    ]


def test_the_run_has_its_name_options_and_summary(written: Written) -> None:
    assert (written.run_id, written.name, written.project, written.tags) == ("resumed-1", "my-run", "mine", ["a", "b"])
    assert {key: written.config[key] for key in CONFIG} == CONFIG
    assert written.summary["run_summary"] == {"outcome": "completed", "books": {"issued": 4}}
    assert written.exit_code == 0


def test_nothing_of_the_environment_or_the_command_line_is_written(written: Written, place: Path) -> None:
    """Keys never reach W&B's files, and neither does what may hold one: metadata, requirements, code, console."""
    files = [path for path in place.rglob("*") if path.is_file()]
    assert offline_file(place) in files
    for path in files:
        content = path.read_bytes()
        for secret in (KEY, "hf_another", "ASYNCRL_TEST_MARK"):
            assert secret.encode() not in content, path
    assert not {"environment", "output", "output_raw"} & written.kinds


def test_everything_of_the_run_is_in_its_own_directory(written: Written, place: Path) -> None:
    assert {path.name for path in place.iterdir()} == {"home", "logs", "wandb"}
    assert [path for path in (place / "home").rglob("*") if path.is_file() and "logs" not in path.parts] == []


def test_a_run_that_failed_is_one_in_wandb_too_and_may_have_another_folder(mark: str, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    host, _ = logger(tmp_path, dir=tmp_path / "elsewhere", log_samples=False, run_name="called-so")
    host.observe("log_eval", record=EvalRecord(5, 4, sets={"held-out": RESULT}))
    host.observe("log_end", summary={"outcome": "failed"})
    written = read_offline(tmp_path / "elsewhere")
    assert (written.exit_code, written.name) == (1, "called-so")
    assert not [row for row in written.rows if "eval/samples" in row]


@pytest.mark.parametrize("options", [{"mode": "disabled"}, {"mode": None}])
def test_disabled_starts_nothing(mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    host, _ = logger(tmp_path, **options)
    host.observe("log_metrics", record=MetricRecord(Axis.TRAIN_STEP, 1, 1000.0, {"run/speed": 1.0}))
    host.observe("log_end", summary={})
    assert list(tmp_path.iterdir()) == []


def test_the_plugin_does_not_import_wandb() -> None:
    """Field report 32."""
    code = "import sys, asyncrl_wandb; print(sorted({'wandb', 'torch', 'ray'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize(
    "wrong",
    [{"project": "a/b"}, {"project": ""}, {"project": "x" * 129}, {"tags": ("",)}, {"tags": ("x" * 65,)}, {"run_id": "a/b"}],
)
def test_a_name_that_wandb_would_refuse_is_refused_before_the_run(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        WandbOptions(**wrong)

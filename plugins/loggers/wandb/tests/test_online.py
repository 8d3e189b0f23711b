"""Uploading: what a server gets, and what becomes of a run whose server stops taking it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from asyncrl import Axis, MetricRecord
from asyncrl.metrics import Declared
from wandb_files import read_offline
from wandb_logger import KEY, logger, wait_until
from wandb_server import WandbServer, serving

pytestmark = pytest.mark.minutes

METRICS = (
    Declared("run/speed", "gauge", "How fast", "tokens/s", Axis.TRAIN_STEP, ""),
    Declared("eval/reward", "gauge", "Mean reward", "reward", Axis.EVAL_STEP, "set"),
)
POINTS = [(20, 0.5), (5, 0.25), (20, 0.75)]


@pytest.fixture
def server(mark: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbServer]:
    with serving(WandbServer()) as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        yield server


def log_points(host) -> None:
    for number, (step, reward) in enumerate(POINTS):
        host.observe("log_metrics", record=MetricRecord(Axis.TRAIN_STEP, 30 + number, 1000.0, {"run/speed": 1.0}))
        host.observe("log_metrics", record=MetricRecord(Axis.EVAL_STEP, step, 1000.0, {"eval/reward/held-out": reward}))


def arrived(server: WandbServer) -> None:
    assert [(row["eval_step"], row["eval/reward/held-out"]) for row in server.rows if "eval_step" in row] == POINTS
    assert [row["train_step"] for row in server.rows if "run/speed" in row] == [30, 31, 32]
    steps = [row["_step"] for row in server.rows]
    assert steps == sorted(set(steps)), "a server drops a row whose own step is not above the one before"
    assert server.axes() == {
        "run/speed": "train_step",
        "eval/reward/held-out": "eval_step",
        "eval/samples": "eval_step",
    }
    assert server.exit_code == 0


def test_a_server_gets_every_point_late_ones_too_with_its_axis(
    server: WandbServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Field report 25."""
    caplog.set_level(logging.INFO)
    host, _ = logger(tmp_path, METRICS, {"steps": 3}, mode="online")
    log_points(host)
    host.observe("log_end", summary={"outcome": "completed"})
    arrived(server)
    assert server.config["steps"] == 3
    lines = [line.getMessage() for line in caplog.records if line.name == "asyncrl"]
    assert [line for line in lines if line.startswith("W&B: ")] == [f"W&B: {server.url}/entity/project/runs/r"]
    assert not [line for line in caplog.records if line.name == "asyncrl" and line.levelno > logging.INFO]


def test_what_was_written_offline_can_be_uploaded_later(
    server: WandbServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Field report 25."""
    host, _ = logger(tmp_path, METRICS, {"steps": 3})
    log_points(host)
    host.observe("log_end", summary={"outcome": "completed"})
    (run,) = (tmp_path / "wandb").glob("offline-run-*")
    command = [Path(sys.executable).parent / "wandb", "beta", "sync", run]
    (tmp_path / "of-wandb").mkdir()  # the command is W&B's own, and so are the files that it leaves
    env = {**os.environ, "TMPDIR": str(tmp_path / "of-wandb")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    arrived(server)


def test_a_server_that_stops_taking_records_costs_the_run_no_more_than_the_deadline(
    server: WandbServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    host, _ = logger(tmp_path, METRICS, mode="online", finish_seconds=8.0)
    wait_until(lambda: "UpsertBucket" in server.asked, "W&B to begin")
    server.taking.clear()
    log_points(host)
    host.observe("log_end", summary={"outcome": "completed"})
    assert server.rows == []
    (warning,) = [line.getMessage() for line in caplog.records if line.name == "asyncrl" and line.levelno == logging.WARNING]
    assert "did not take everything in its time" in warning and "wandb sync" in warning
    assert read_offline(tmp_path, "run-*").series("run/speed", "train_step") == [(30, 1.0), (31, 1.0), (32, 1.0)]


def test_a_run_that_goes_on_is_the_same_run_in_which_no_step_comes_twice(
    server: WandbServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncrl_wandb.link.LAST_CHANCE_SECONDS", 60.0)  # the run is over before W&B has begun

    def log(host, *steps: int) -> None:
        for step in steps:
            host.observe("log_metrics", record=MetricRecord(Axis.EVAL_STEP, step, 1000.0, {"eval/reward/held-out": 0.5}))
            host.observe("log_metrics", record=MetricRecord(Axis.TRAIN_STEP, step, 1000.0, {"run/speed": float(step)}))
        host.observe("log_end", summary={"outcome": "failed"})

    log(logger(tmp_path, METRICS, mode="online", finish_seconds=120)[0], 1, 2, 3, 4)
    log(logger(tmp_path, METRICS, mode="online", finish_seconds=120, resumed_step=2)[0], 3, 4, 5, 6)
    assert [row["train_step"] for row in server.rows if "run/speed" in row] == [1, 2, 3, 4, 5, 6]
    assert [row["eval_step"] for row in server.rows if "eval_step" in row] == [1, 2, 3, 4, 3, 5, 6]
    assert server.ids == [(tmp_path / "wandb-run-id.txt").read_text().strip()]

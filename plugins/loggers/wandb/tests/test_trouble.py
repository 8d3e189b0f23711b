"""Whatever is wrong with W&B, the run goes on as it was, and nothing of W&B's is left at its end."""

from __future__ import annotations

import itertools
import logging
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from asyncrl import Axis, MetricRecord
from asyncrl_wandb import Wandb
from small_disk import fill, small_disk
from wandb_files import offline_file, read_offline
from wandb_logger import KEY, logger, processes_with, wait_until


def record(step: int) -> MetricRecord:
    return MetricRecord(Axis.TRAIN_STEP, step, 1000.0, {"run/speed": 1.0})


def dropped(plugin: Wandb) -> dict[str, float]:
    return plugin.metrics.drain()["loggers/wandb/dropped"]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line.getMessage() for line in caplog.records if line.name == "asyncrl" and line.levelno == logging.WARNING]


def test_a_server_that_never_answers_neither_stops_nor_slows_the_run(
    silent_server: threading.Event, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What a full queue cannot take is counted and said once; what it took is written offline at the end."""
    host, plugin = logger(tmp_path, mode="online", start_seconds=1000.0, finish_seconds=120.0, queue_size=60)
    for step in range(50):
        host.observe("log_metrics", record=record(step))
    assert silent_server.wait(60), "W&B asks its server"
    for step in range(50, 100):  # these calls return while W&B waits
        host.observe("log_metrics", record=record(step))
    drained = plugin.metrics.drain()
    assert drained["loggers/wandb/waiting"] == {"": 60}
    assert drained["loggers/wandb/dropped"] == {"queue_full": 40, "failed": 0}
    host.observe("log_end", summary={"outcome": "completed"})
    assert [step for step, _ in read_offline(tmp_path).series("run/speed", "train_step")] == list(range(60))
    slow, unanswered = warnings(caplog)
    assert slow == "W&B is too slow: 60 records wait and more are dropped (said once; see loggers/wandb/dropped)"
    assert "no answer within" in unanswered and "this run is written offline" in unanswered
    assert KEY not in "".join(path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file())


@pytest.mark.parametrize("key", [KEY, ""], ids=["unreachable", "no key"])
def test_a_run_that_cannot_be_online_is_written_offline(
    mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, key: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{free}")
    if key:
        monkeypatch.setenv("WANDB_API_KEY", key)
    host, plugin = logger(tmp_path, mode="online", start_seconds=1.0 if key else 1000.0, finish_seconds=120.0)
    host.observe("log_metrics", record=record(1))
    wait_until(lambda: plugin._link._notes, "W&B to say that it can't")
    host.observe("log_end", summary={"outcome": "completed"})
    assert read_offline(tmp_path).series("run/speed", "train_step") == [(1, 1.0)]
    (warning,) = warnings(caplog)
    assert "this run is written offline" in warning
    assert key or "API key" in warning


def test_the_end_has_a_deadline(silent_server: threading.Event, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    host, _ = logger(tmp_path, mode="online", start_seconds=1000.0, finish_seconds=0.5)
    host.observe("log_metrics", record=record(1))
    assert silent_server.wait(60)
    host.observe("log_end", summary={"outcome": "completed"})
    assert any("did not take everything in its time" in warning for warning in warnings(caplog))


def test_the_death_of_wandbs_process_costs_the_run_nothing(mark: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Field report 38."""
    host, plugin = logger(tmp_path)
    wait_until(lambda: list(tmp_path.glob("wandb/offline-run-*")), "W&B to begin")
    for line in processes_with(mark):
        os.kill(int(line.split()[0]), signal.SIGKILL)
    wait_until(lambda: host.observe("log_metrics", record=record(1)) or plugin._link.failed, "the logger to notice")
    dropped(plugin)
    host.observe("log_metrics", record=record(2))
    assert dropped(plugin)["failed"] >= 1
    host.observe("log_end", summary={"outcome": "completed"})
    (warning,) = warnings(caplog)
    assert "the run goes on without it" in warning
    assert host.metrics.drain() == {}, "no call failed"


def test_a_disk_that_is_full_at_the_start_costs_the_logger_alone(
    mark: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with small_disk(tmp_path / "disk", 512) as disk:
        fill(disk)
        host, _ = logger(disk)
        host.observe("log_metrics", record=record(1))
        host.observe("log_end", summary={"outcome": "completed"})
    told = warnings(caplog)
    assert "the run goes on without it" in told[-1]
    assert all("full" in warning or "No space left" in warning for warning in told)
    assert host.metrics.drain() == {}, "no call failed"


def test_a_disk_that_fills_up_costs_what_comes_after_which_is_said_once_and_counted(
    mark: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """W&B says nothing of it, and writes nothing more, also when there is room again. The end comes all the same."""
    with small_disk(tmp_path / "disk", 512) as disk:
        host, plugin = logger(disk)
        host.observe("log_metrics", record=record(0))
        wait_until(lambda: list(disk.glob("wandb/offline-run-*/*.wandb")), "W&B to begin")
        wait_until(lambda: not plugin._link.waiting and plugin._link.notes(), "the first record to be taken")
        ballast = fill(disk)
        steps = itertools.count(1)
        wait_until(
            lambda: host.observe("log_metrics", record=record(next(steps))) or plugin._link.rejected, "the logger to notice"
        )
        ballast.unlink()
        last = next(steps)
        host.observe("log_metrics", record=record(last))
        host.observe("log_end", summary={"outcome": "completed"})
    (warning,) = warnings(caplog)
    assert "(said once)" in warning and "the disk was full" in warning
    assert dropped(plugin)["failed"] == last
    assert host.metrics.drain() == {}, "no call failed"


def test_nothing_is_left_when_the_controller_is_killed(mark: str, tmp_path: Path) -> None:
    script = f"""
        import sys, time
        from pathlib import Path
        sys.path[:0] = {sys.path!r}
        from wandb_logger import logger
        from asyncrl import Axis, MetricRecord
        host, plugin = logger(Path({str(tmp_path)!r}))
        host.observe("log_metrics", record=MetricRecord(Axis.TRAIN_STEP, 1, 1000.0, {{"run/speed": 1.0}}))
        while plugin._link.waiting or not plugin._link.notes():
            time.sleep(0.05)
        Path({str(tmp_path / "taken")!r}).touch()
        time.sleep(600)
    """
    controller = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)])
    try:
        wait_until((tmp_path / "taken").exists, "W&B to begin")
        assert any("wandb-core" in line for line in processes_with(mark))
    finally:
        controller.kill()
        controller.wait()
    wait_until(lambda: processes_with(mark) == [], "W&B's processes to go")
    written = read_offline(tmp_path)
    assert written.series("run/speed", "train_step") == [(1, 1.0)], "what came before is kept"
    assert written.exit_code == 1
    assert offline_file(tmp_path).exists()

"""However a run ends, it says so, and nothing of it is left."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def server_pid(run) -> int:
    """The process of the run's engine server."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
                is_server = b"asyncrl_torch.server" in command and b"asyncrl.runtime.child" not in command
                if is_server and run.mark.encode() in (entry / "environ").read_bytes():
                    return int(entry.name)
            except OSError:
                continue
    raise AssertionError("no engine server is running")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_finishes_the_step_saves_and_leaves(start, number: signal.Signals) -> None:
    run = start("--steps", "1000", "--eval-interval", "0")
    run.wait_for_step(2)
    run.process.send_signal(number)
    assert run.wait() == 130, run.output
    assert run.summary["outcome"] == "interrupted"
    assert (run.directory / f"checkpoints/step-{run.summary['steps']}/model/model.safetensors").exists()
    assert run.left_behind() == []


def test_ctrl_c_twice_leaves_now(start) -> None:
    run = start("--steps", "1000", "--eval-interval", "0")
    run.wait_for_step(2)
    run.process.send_signal(signal.SIGINT)
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130, run.output
    assert run.left_behind() == []


def test_ctrl_c_while_starting_leaves_now(start) -> None:
    """Field report 19."""
    run = start("--steps", "1000")
    run.wait_until(lambda: (run.directory / "log.txt").exists(), "the log")
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130, run.output
    assert run.left_behind() == []


def test_a_killed_controller_leaves_nothing(start) -> None:
    run = start("--steps", "1000", "--eval-interval", "0")
    run.wait_for_step(1)
    run.process.send_signal(signal.SIGKILL)
    run.process.wait()
    assert run.left_behind() == []


def test_a_dead_engine_ends_the_run_with_one_error_that_quotes_its_log(start) -> None:
    """Field report 12."""
    run = start("--steps", "100000", "--eval-interval", "0")
    run.wait_for_step(1)
    os.kill(server_pid(run), signal.SIGKILL)
    assert run.wait() == 1, run.output
    assert "asyncrl: error:" in run.output
    assert "engine-0" in run.output
    assert "Traceback" not in run.output
    assert run.summary["outcome"] == "failed"
    assert run.left_behind() == []

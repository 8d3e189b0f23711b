"""However a run ends, it says so, and nothing of it is left."""

from __future__ import annotations

import os
import signal
import time

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.minutes]


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_one_signal_finishes_the_step_saves_and_leaves(start, number: signal.Signals) -> None:
    run = start("--steps", "1000", "--eval-interval", "0")
    run.wait_for_step(2)
    run.process.send_signal(number)
    assert run.wait() == 130, run.output
    assert run.summary["outcome"] == "interrupted"
    assert (run.directory / f"checkpoints/step-{run.summary['steps']}/model/model.safetensors").exists()
    assert run.left_behind() == []


@pytest.mark.long
def test_ctrl_c_twice_leaves_now(start) -> None:
    run = start("--steps", "1000", "--eval-interval", "0")
    run.wait_for_step(2)
    run.process.send_signal(signal.SIGINT)
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130, run.output
    assert run.left_behind() == []


@pytest.mark.long
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


@pytest.mark.long
def test_a_dead_engine_that_may_not_be_restarted_ends_the_run_with_one_error_that_quotes_its_log(start) -> None:
    """Field report 12."""
    run = start("--steps", "100000", "--eval-interval", "0", "--max-engine-restarts", "0")
    run.wait_for_step(1)
    os.kill(run.one("engine"), signal.SIGKILL)
    assert run.wait() == 1, run.output
    assert "asyncrl: error:" in run.output
    assert "engine-0 ended" in run.output
    assert "Traceback" not in run.output
    assert run.summary["outcome"] == "failed"
    assert run.left_behind() == []


@pytest.mark.long
def test_a_stalled_engine_is_waited_for(start) -> None:
    run = start("--steps", "12", "--eval-interval", "0")
    run.wait_for_step(1)
    server = run.one("engine")
    os.kill(server, signal.SIGSTOP)
    time.sleep(15)  # longer than one look at an engine takes
    os.kill(server, signal.SIGCONT)
    assert run.wait() == 0, run.output
    assert run.summary["steps"] == 12


@pytest.mark.long
def test_a_reader_that_leaves_does_not_end_the_run(start) -> None:
    run = start("--steps", "3", "--eval-interval", "0")
    run.process.stdout.readline()
    run.process.stdout.close()
    assert run.process.wait(240) in (0, 1)
    assert run.summary["outcome"] == "completed"

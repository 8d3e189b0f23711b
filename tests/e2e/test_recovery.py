"""An engine's server that is killed or hangs is started again and gets the present weights; the run goes on, and loses nothing."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.minutes]

STEPS = 100_000
FLAGS = ("--steps", str(STEPS), "--eval-interval", "0", "--engine-hang-timeout", "5", "--max-engine-restarts", "9")
SAME = 1e-3
"""Log-probabilities of trainer and engine differ by less, in nats, where a token was made by the weights that it is said to be from."""


def goes_on(run: Any, restarts: int) -> None:
    """Wait until so many servers have come back, and three more steps were trained."""
    log = run.directory / "log.txt"
    run.wait_until(lambda: log.read_text().count("has a new server") >= restarts, f"restart {restarts}")
    run.wait_for_step(run.last_step() + 3)


def finish(run: Any, restarts: int) -> None:
    """End the run, and check that its books balance, that it counted the restarts, and that each token was made by the weights that it is
    said to be from."""
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130, run.output
    assert run.summary["outcome"] == "interrupted"
    assert "Traceback" not in run.output
    values = [line["values"] for axis in ("train_step", "wall_seconds") for line in run.metrics(axis)]
    assert all(line["values"]["run/weight_version"] == line["step"] for line in run.metrics()), (
        "a return was counted as a version"
    )
    counted = {name: one[name] for one in values for name in one if name.startswith("engines/restarts/")}
    assert sum(counted.values()) >= restarts
    differences = [one.get("trainer/fsdp/largest_logprob_difference_by_age/0", 0.0) for one in values]
    assert 0.0 < max(differences) < SAME
    assert run.left_behind() == []


@pytest.mark.long
def test_the_only_engine_comes_back_whenever_it_is_killed_or_hangs(start: Any, resume: Any) -> None:
    """Field report 12. By disk: kill -9 while weights are on their way to it and after a resume, and a hang."""
    run = start(*FLAGS)
    run.wait_for_step(2)
    one = run.one("engine", "engine-0")
    run.wait_until(lambda: any(run.publish_dir.glob("asyncrl-*/*")), "a publication", every=0.002)
    os.kill(one, signal.SIGKILL)
    goes_on(run, 1)

    os.kill(run.one("engine", "engine-0"), signal.SIGSTOP)
    goes_on(run, 2)
    finish(run, 2)

    run = resume(run, "--save-interval", "1", "--keep-checkpoints", "1")
    run.wait_for_step(run.last_step() + 3)  # the checkpoint with which its server started is gone
    os.kill(run.one("engine", "engine-0"), signal.SIGKILL)
    goes_on(run, 3)
    finish(run, 3)


@pytest.mark.long
def test_one_of_two_engines_comes_back_while_the_other_goes_on(start: Any) -> None:
    """Field report 12. By broadcast, by which what is sent waits for what does not come."""
    run = start(*FLAGS, "--num-engines", "2", "--publish-method", "broadcast")
    run.wait_for_step(2)
    hung = run.one("engine", "engine-1")
    os.kill(hung, signal.SIGSTOP)
    time.sleep(1.5)  # a publication waits for it
    os.kill(hung, signal.SIGKILL)
    goes_on(run, 1)

    os.kill(run.one("engine", "engine-0"), signal.SIGSTOP)
    goes_on(run, 2)

    os.kill(run.processes("engine actor")[0], signal.SIGKILL)
    goes_on(run, 3)
    finish(run, 3)


@pytest.mark.long
def test_an_engine_that_dies_once_too_often_ends_the_run_with_its_last_words(start: Any) -> None:
    """Field report 12."""
    run = start(*FLAGS, "--max-engine-restarts", "1")
    run.wait_for_step(1)
    os.kill(run.one("engine", "engine-0"), signal.SIGKILL)
    goes_on(run, 1)
    os.kill(run.one("engine", "engine-0"), signal.SIGKILL)
    assert run.wait() == 1, run.output
    error = run.output[run.output.index("asyncrl: error:") :]
    assert "no engine is left, and each was started again 1 times (max_engine_restarts): engine-0: its server died" in error
    assert "engine-0 ended:\n" in error
    assert "Traceback" not in run.output
    assert run.summary["outcome"] == "failed"
    assert run.left_behind() == []

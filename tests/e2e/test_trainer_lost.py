"""A trainer rank that dies or hangs costs the steps since the last checkpoint, and nothing else."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from asyncrl.training.stored import choose, steps_in
from live import PATIENT

pytestmark = [pytest.mark.slow, pytest.mark.minutes, pytest.mark.timeout(1800)]

PATIENCE = 900.0
FLAGS = (
    *PATIENT,
    *("--trainer-ranks", "2", "--steps", "12", "--save-interval", "3", "--keep-checkpoints", "9", "--eval-interval", "0"),
    *("--batch-size", "4", "--group-size", "4", "--max-concurrent-samples", "16", "--filters", "", "--staleness", "none"),
    *("--scheduler", "lockstep", "--engine.max-running", "1", "--engine.prefix-entries", "0"),
)
"""By which a run has the same weights each time, to the last bit: see docs/resume.md."""


def times_begun(run: Any) -> int:
    """How often the training loop has begun."""
    return (run.directory / "log.txt").read_text().count(" parameters\n")


def lose_a_rank(run: Any, number: signal.Signals) -> None:
    """Send a signal to a rank, and wait until the run trains again."""
    before = times_begun(run)
    os.kill(run.processes("trainer rank")[0], number)
    run.wait_until(lambda: times_begun(run) > before, "the run to go on")


@pytest.mark.long
def test_a_run_that_loses_ranks_ends_with_the_weights_of_one_that_does_not(start: Any) -> None:
    """Killed before there is a checkpoint and after it; then one rank stands still, so that the other waits for it."""
    run = start(*FLAGS, "--trainer-timeout", "60", name="lossy")
    run.patience = PATIENCE
    run.wait_for_step(1)
    server = run.one("engine")
    lose_a_rank(run, signal.SIGKILL)
    run.wait_until(lambda: 3 in steps_in(run.directory / "checkpoints"), "a checkpoint")
    lose_a_rank(run, signal.SIGKILL)
    run.wait_for_step(4)
    lose_a_rank(run, signal.SIGSTOP)
    assert run.one("engine") == server, "it stays, and with it what it had loaded"
    assert run.wait() == 0, run.output
    assert "Traceback" not in run.output
    assert run.left_behind() == []

    assert run.summary["restarts"]["trainer"] == 3
    for name in ("metrics.jsonl", "steps.jsonl"):
        found = [line["step"] for line in run.lines(name) if line.get("axis", "train_step") == "train_step"]
        assert found == list(range(1, 13)), name
    assert run.metrics()[-1]["values"]["run/restarts"] == 3
    books = run.summary["books"]
    assert books["trained"] == 12 * 4 and books["issued"] == books["trained"] + books["unfinished"]
    ledger = choose(run.directory / "checkpoints").run["rollout"]["ledger"]
    assert ledger["cursor"] == books["trained"] + len(ledger["open"])

    whole = start(*FLAGS, name="whole")
    whole.patience = PATIENCE
    assert whole.wait() == 0, whole.output
    for step in (3, 6, 9, 12):
        weights = [(one.directory / f"checkpoints/step-{step}/model/model.safetensors").read_bytes() for one in (whole, run)]
        assert weights[0] == weights[1], f"step {step}"
    for name in ("books", "tokens", "staleness"):
        assert run.summary[name] == whole.summary[name]


@pytest.mark.long
def test_without_restarts_a_lost_rank_ends_the_run_with_one_line_that_says_how_to_go_on(start: Any) -> None:
    run = start(*FLAGS, "--max-restarts", "0")
    run.wait_for_step(1)
    os.kill(run.processes("trainer rank")[0], signal.SIGKILL)
    assert run.wait() == 1, run.output
    line = next(line for line in run.output.splitlines() if line.startswith("asyncrl: error:"))
    assert "trainer rank" in line and "its process died" in line
    assert "max_restarts = 0" in line and "asyncrl resume" in line
    assert "Traceback" not in run.output
    assert run.summary["outcome"] == "failed"
    assert run.left_behind() == []

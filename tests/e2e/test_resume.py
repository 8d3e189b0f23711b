"""A run that ended in whatever way goes on as if nothing had been, and the books prove it."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from live import Run
from whole_life import OBSERVED, check_whole, contents, observing

pytestmark = pytest.mark.slow

EVERYTHING_IS_TRAINED = ("--filters", "", "--staleness", "none")
"""So that a prompt is either trained or still open."""


@pytest.fixture
def ends(tmp_path: Path) -> dict[str, str]:
    """Environment of runs that write down their batches."""
    return observing(tmp_path / "site")


def check_completed(run: Run, steps: int, evals: Sequence[int] = ()) -> None:
    assert run.wait() == 0, run.output
    check_whole(run, steps, evals=evals)


@pytest.mark.minutes
@pytest.mark.timeout(1800)
@pytest.mark.long
def test_a_killed_run_goes_on_and_a_living_one_is_left_alone(start, resume, ends) -> None:
    """Field reports 20 and 21."""
    flags = ("--steps", "6", "--save-interval", "2", "--eval-interval", "3", *OBSERVED, *EVERYTHING_IS_TRAINED)
    run = start(*flags, env=ends)
    run.wait_for_step(3)
    run.wait_until(lambda: (run.directory / "checkpoints" / "step-2").exists(), "the first checkpoint")
    other = resume(run, env=ends)
    assert other.wait() == 2, other.output
    assert f"is still alive: process {run.process.pid} on " in other.output
    run.kill()
    run = resume(run, env=ends)
    check_completed(run, 6, evals=(0, 3, 6))
    assert [(line["step"], line["version"], line["skipped"]) for line in run.evals()] == [(0, 0, ""), (3, 3, ""), (6, 6, "")]
    assert run.summary["evaluations"] == 2


@pytest.mark.minutes
@pytest.mark.timeout(1800)
def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(start, resume, ends) -> None:
    """The evaluation of the initial weights stays; everything else is there once."""
    run = start("--steps", "3", "--eval-interval", "3", *OBSERVED, *EVERYTHING_IS_TRAINED, env=ends)
    run.wait_for_step(1)
    run.kill()
    first = run.evals()
    run = resume(run, env=ends)
    check_completed(run, 3, evals=(0, 3))
    assert [line["step"] for line in run.evals()] == [0, 3] and run.evals()[: len(first)] == first
    assert "the run begins again: it has no checkpoint to go on from" in run.output
    assert run.left_behind() == []


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_run_is_killed_again_and_again_also_while_it_saves_and_with_other_ranks_and_engines(start, resume, ends) -> None:
    """Field reports 20 and 21."""
    flags = ("--steps", "14", "--save-interval", "1", "--eval-interval", "4", *OBSERVED, *EVERYTHING_IS_TRAINED)
    run = start(*flags, env=ends)
    checkpoints = run.directory / "checkpoints"

    run.wait_until(lambda: (checkpoints / ".step-3.partial").exists(), "the third checkpoint to be written")
    run.kill()
    run = resume(run, "--trainer-ranks", "2", "--num-engines", "2", env=ends)
    run.wait_until(lambda: (checkpoints / "step-6").exists(), "the sixth checkpoint")
    run.kill()
    run = resume(run, "--trainer-ranks", "1", env=ends)
    run.wait_for_step(9)
    run.kill()
    run = resume(run, "--num-engines", "1", "--publish-method", "broadcast", env=ends)
    run.wait_until(lambda: (checkpoints / ".step-12.partial").exists(), "the twelfth checkpoint to be written")
    run.kill()
    run = resume(run, env=ends)
    check_completed(run, 14, evals=(0, 4, 8, 12, 14))


@pytest.mark.minutes
@pytest.mark.timeout(1800)
@pytest.mark.long
def test_going_on_between_two_publications_counts_as_one(start, resume, ends) -> None:
    flags = ("--steps", "6", "--save-interval", "1", "--publish-interval", "2", "--eval-interval", "0", *OBSERVED)
    run = start(*flags, *EVERYTHING_IS_TRAINED, env=ends)
    run.wait_until(lambda: (run.directory / "checkpoints" / "step-3").exists(), "the third checkpoint")
    run.kill()
    run = resume(run, "--from", "step-3", env=ends)
    check_completed(run, 6)
    assert [line["values"]["run/weight_version"] for line in run.metrics()] == [0, 1, 1, 3, 3, 4]


LOCKSTEP = (
    *("--steps", "6", "--batch-size", "4", "--group-size", "4", "--save-interval", "1", "--keep-checkpoints", "9"),
    *(
        "--eval-interval",
        "0",
        "--scheduler",
        "lockstep",
        "--filters",
        "",
        "--staleness",
        "none",
        "--max-concurrent-samples",
        "16",
    ),
    *(
        "--engine.max-running",
        "1",
        "--engine.prefix-entries",
        "0",
    ),  # alone in its batch, a request's numbers are the same to the last bit
)


@pytest.mark.minutes
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGKILL])
def test_a_resumed_lockstep_run_has_the_weights_of_one_that_was_not_interrupted(start, resume, number: signal.Signals) -> None:
    whole = start(*LOCKSTEP, name="whole")
    run = start(*LOCKSTEP, name="interrupted")
    run.wait_for_step(3)
    run.process.send_signal(number)
    run.process.communicate()
    run = resume(run)
    assert run.wait() == 0, run.output
    assert whole.wait() == 0, whole.output
    for step in range(1, 7):
        weights = [(one.directory / f"checkpoints/step-{step}/model/model.safetensors").read_bytes() for one in (whole, run)]
        assert weights[0] == weights[1], f"step {step}"
    for name in ("books", "tokens", "staleness"):
        assert run.summary[name] == whole.summary[name]


@pytest.mark.minutes
def test_a_run_that_is_complete_goes_on_only_if_more_is_asked_for(start, resume) -> None:
    """What is refused only while everything starts has cost nothing either."""
    run = start("--steps", "2", "--eval-interval", "0", "--save-interval", "1")
    assert run.wait() == 0, run.output
    kept = contents(run.directory)
    again = resume(run)
    assert again.wait() == 2, again.output
    assert "steps: the run has trained all its 2 steps (to train it further, ask for more: --steps 4)" in again.output
    unfit = resume(run, "--from", "step-1", "--eval-interval", "1", "--eval-sets", "unheard-of")
    assert unfit.wait() == 2, unfit.output
    assert "--eval-sets: task plugin 'sort-digits'" in unfit.output and "has no eval set 'unheard-of'" in unfit.output
    assert contents(run.directory) == kept
    before = json.loads((run.directory / "summary.json").read_text())
    more = resume(run, "--steps", "3")
    assert more.wait() == 0, more.output
    assert [line["step"] for line in more.metrics()] == [1, 2, 3]
    assert more.summary["books"]["issued"] >= before["books"]["issued"]
    assert more.left_behind() == []

"""Points that are pending when the run is killed or interrupted: each ends as one record, and no snapshot outlives the run."""

from __future__ import annotations

import hashlib
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from fake_distributions import install

pytestmark = [pytest.mark.slow, pytest.mark.minutes]

FLAGS = ("--steps", "8", "--eval-interval", "2", "--save-interval", "2", "--eval", "held", "--eval-max-in-flight", "9")


@pytest.fixture
def held(tmp_path: Path) -> dict[str, str]:
    """Environment of runs whose evaluations wait for the test."""
    install(tmp_path / "site", "held", {"asyncrl.evals": {"held": "held_eval_plugin:Held"}})
    return {"PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), str(Path(__file__).parents[1] / "support")])}


@pytest.fixture
def staging(tmp_path: Path) -> Path:
    directory = tmp_path / "staging"
    (directory / "asyncrl-evals-of-another-run" / "step-2").mkdir(parents=True)
    return directory


def only_the_other_runs(staging: Path) -> bool:
    return [path.name for path in staging.iterdir()] == ["asyncrl-evals-of-another-run"] and any(staging.glob("*/step-2"))


def saved(run: Any) -> int:
    return max((int(path.name.removeprefix("step-")) for path in (run.directory / "checkpoints").glob("step-*")), default=0)


def outcomes(run: Any) -> dict[int, str]:
    """The reason of each point by its step; each of them measured its own version and was recorded once."""
    records = run.evals()
    assert [record["version"] for record in records] == [record["step"] for record in records]
    assert len({record["step"] for record in records}) == len(records)
    return {record["step"]: record["skipped"] for record in records}


def kill_with_points_pending(run: Any) -> int:
    """Return the step of the checkpoint from which a resumed run goes on."""
    run.wait_until(lambda: saved(run) >= 6, "the third checkpoint")
    run.process.send_signal(signal.SIGKILL)
    run.process.communicate()
    assert run.left_behind() == []
    assert run.evals() == []
    (run.directory / "go").touch()
    return saved(run)


@pytest.mark.long
def test_a_run_that_was_killed_with_exported_points_pending_explains_each_of_them(start, resume, held, staging) -> None:
    """Field report 27."""
    run = start(*FLAGS, "--staging-dir", str(staging), env=held)
    done = kill_with_points_pending(run)
    assert only_the_other_runs(staging)
    run = resume(run, env=held)
    assert run.wait() == 0, run.output
    assert outcomes(run) == {step: "crashed" if 0 < step < done else "" for step in (0, 2, 4, 6, 8)}
    assert only_the_other_runs(staging) and run.left_behind() == []


@pytest.mark.long
def test_a_run_that_was_killed_with_points_on_checkpoints_pending_evaluates_them_all(start, resume, held, staging) -> None:
    """Field report 24."""
    flags = ("--eval-snapshots", "checkpoints", "--keep-checkpoints", "1", "--staging-dir", str(staging))
    run = start(*FLAGS, *flags, env=held)
    done = kill_with_points_pending(run)
    kept = {path.name for path in (run.directory / "checkpoints").glob("step-*")}
    assert kept == {f"step-{step}" for step in range(2, done + 1, 2)}  # all of them are pending
    run = resume(run, env=held)
    assert run.wait() == 0, run.output
    assert outcomes(run) == dict.fromkeys((0, 2, 4, 6, 8), "")
    assert {path.name for path in (run.directory / "checkpoints").iterdir()} == {"step-8"}
    weights = {step: digest for step, _, digest in run.lines("evaluated.jsonl")}
    assert len(set(weights.values())) == 5
    last = run.directory / "checkpoints" / "step-8" / "model" / "model.safetensors"
    assert weights[8] == hashlib.sha256(last.read_bytes()).hexdigest()


@pytest.mark.long
def test_ctrl_c_waits_for_what_is_pending_and_a_second_one_does_not(start, held, staging) -> None:
    run = start(*FLAGS, "--staging-dir", str(staging), env=held)
    run.wait_until(lambda: saved(run) >= 4, "the second checkpoint")
    run.process.send_signal(signal.SIGINT)
    log = run.directory / "log.txt"
    run.wait_until(lambda: "stopping: finishing the step and saving" in log.read_text(), "the first to be understood")
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130, run.output
    points = outcomes(run)
    assert {0, 2, 4} <= set(points) and set(points.values()) == {"interrupted"}
    assert all(record["detail"]["why"] == "the run ended before it was evaluated" for record in run.evals())
    assert only_the_other_runs(staging) and run.left_behind() == []

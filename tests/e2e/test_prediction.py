"""The run against its prediction: `asyncrl simulate`, fed with what a run recorded, tells that run's step time and staleness."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.minutes]

STEPS = 30
AGREEMENT = 0.15


def test_a_run_and_the_simulation_of_its_recording_agree(start) -> None:
    """On step time and mean staleness within 15 %. Only lengths, times and rewards are taken over: who waits for whom, which groups
    are dropped and how old the trained ones are is the schedule's doing, and that runs anew."""
    run = start("--steps", str(STEPS), "--eval-interval", "10")
    assert run.wait() == 0, run.output
    command = [sys.executable, "-m", "asyncrl", "simulate", str(run.directory / "config.toml")]
    options = ["--simulate.trace", str(run.directory), "--simulate.warmup-steps", "0", "--json"]
    done = subprocess.run(
        [*command, *options],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    simulated, summary = json.loads(done.stdout), run.summary
    assert simulated["steps"] == summary["steps"] == STEPS
    measured = {"step": summary["seconds"]["step"], "staleness": summary["staleness"]["mean"]}
    predicted = {"step": simulated["step_mean"], "staleness": simulated["staleness_mean"]}
    print(f"measured {measured}, predicted {predicted}, dropped {summary['books']['dropped']} and {simulated['dropped']}")
    assert predicted == pytest.approx(measured, rel=AGREEMENT)
    assert summary["staleness"]["mean"] > 0.2, "a run without staleness would prove nothing"

"""The rollout actor is killed: another one takes its place, and the run goes on as if nothing had been but for some time."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from live import Run
from whole_life import OBSERVED, check_whole, observing

pytestmark = [pytest.mark.slow, pytest.mark.minutes, pytest.mark.timeout(1800)]

STEPS = 12
FLAGS = ("--steps", str(STEPS), "--eval-interval", "0", "--save-interval", "5", "--staleness", "none", "--filters", "", *OBSERVED)


def kill_it(run: Run, *before: int) -> int:
    """Kill the rollout actor, once there is another than `before`, and return its process id."""

    def there() -> list[int]:
        return [process for process in run.processes("rollout actor") if process not in before]

    run.wait_until(there, "the rollout actor")
    (process,) = there()
    os.kill(process, signal.SIGKILL)
    return process


@pytest.mark.long
def test_a_rollout_actor_that_is_killed_costs_the_run_nothing_but_time(start: Any, tmp_path: Path) -> None:
    """At any moment, and while the engines load new weights."""
    run: Run = start(*FLAGS, env=observing(tmp_path / "site"), patience=900.0)
    log = run.directory / "log.txt"
    run.wait_for_step(2)
    first = kill_it(run)
    run.wait_until(lambda: log.read_text().count("the rollout actor is there again") == 1, "the second rollout actor")
    run.wait_for_step(4)
    run.wait_until(lambda: any(run.publish_dir.glob("*/v-*")), "a publication", every=0.002)
    kill_it(run, first)

    assert run.wait() == 0, run.output
    assert log.read_text().count("the rollout actor is made anew") == 2
    assert max(line["values"].get("rollout/restarts", 0) for line in run.metrics("wall_seconds")) == 2
    check_whole(run, STEPS)

"""A real run that stands still says why, on its own and when it is asked."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest


def written(run: Any) -> list[str]:
    return [file.read_text() for file in sorted(Path(run.directory, "logs").glob("stacks-*.txt"))]


@pytest.mark.minutes
@pytest.mark.long
def test_a_stopped_rollout_actor_is_named_with_the_stacks_of_all_processes(start: Any) -> None:
    run = start("--steps", "6", "--eval-interval", "0", "--watchdog-timeout", "10")
    run.wait_for_step(1)
    run.process.send_signal(signal.SIGUSR1)
    run.wait_until(lambda: written(run), "the stacks that were asked for")
    asked = written(run)[0]
    for who in ("controller", "rollout actor", "trainer rank 0", "actor of engine-0", "torch engine server on port"):
        assert re.search(rf"^== {who}.*\n(.*\n)*?.*(Thread|thread) 0x", asked, re.MULTILINE), who
    assert "in RolloutService.take_batch" in asked or "in ProducerLoop._run" in asked
    found = re.search(r"== rollout actor \(process (\d+)\)", asked)
    assert found
    os.kill(int(found[1]), signal.SIGSTOP)
    run.wait_until(lambda: any("stopped: rollout actor" in text for text in written(run)), "the watchdog")
    os.kill(int(found[1]), signal.SIGCONT)
    assert run.wait() == 0, run.output
    assert re.search(r"nothing has moved for \d+ s.*it waits for: .*stopped: rollout actor", run.output)
    assert run.summary["steps"] == 6
    assert run.left_behind() == []

"""An engine's server that is killed or hangs is started again and gets the present weights; the run goes on, and loses nothing."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

FLAGS = ("--eval-interval", "0", "--engine-hang-timeout", "3")


def servers(run: Any) -> dict[str, int]:
    """The processes of the run's engine servers, by the name of their log."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
                is_server = b"asyncrl_torch.server" in command and b"asyncrl.runtime.child" not in command
                if is_server and run.mark.encode() in (entry / "environ").read_bytes():
                    found[Path(os.readlink(entry / "fd" / "1")).stem] = int(entry.name)
            except OSError:
                continue
    return found


def restarts(run: Any) -> float:
    return max((line["values"].get("engines/restarts", 0.0) for line in run.metrics("wall_seconds")), default=0.0)


def hit(run: Any, number: signal.Signals, name: str = "engine-0") -> None:
    before = servers(run)[name]
    os.kill(before, number)
    run.wait_until(lambda: servers(run).get(name, before) != before, f"a new server of {name}")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_the_only_engine_comes_back_and_the_run_goes_on(start, number: signal.Signals) -> None:
    """Field report 12."""
    run = start("--steps", "8", *FLAGS)
    run.wait_for_step(2)
    hit(run, number)
    assert run.wait() == 0, run.output
    assert run.summary["steps"] == 8
    print(run.output)
    assert run.left_behind() == []

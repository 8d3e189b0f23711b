"""Trains for a while and sees that no process of the run grows.

make soak                                         20 minutes
.venv/bin/python tools/soak.py --minutes 2        shorter; the verdict needs about ten

What is looked at, and what counts as growth: tests/support/soak.py. Exit code 1 if something grows, or is left.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from fake_distributions import install  # noqa: E402
from live import DEMO, PATIENT, Run, begin  # noqa: E402
from soak import Watch, table  # noqa: E402
from texts import columns  # noqa: E402

EVERY_SECONDS = 5.0
FLAGS = ("--steps", "1000000", "--save-interval", "5", "--eval-interval", "10", "--filters", "", "--staleness", "none")
"""Everything that a run does again and again; no group is refused, so that it goes on alike however well the model has learned."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0, help="how long it trains (20)")
    minutes = parser.parse_args().minutes
    folder = Path(tempfile.mkdtemp(prefix="asyncrl-soak-"))
    run = _start(folder)
    try:
        watch = _watched(run, minutes * 60)
        run.process.send_signal(signal.SIGINT)
        code = run.wait()
        steps, left = run.last_step(), run.left_behind()
        findings = watch.findings()
    finally:
        run.clear()
    print(columns(table(findings)))
    print(f"{minutes:g} minutes, {steps} steps, exit code {code}, left: {', '.join(left) or 'nothing'}")
    if code != 130 or left or not all(one.flat for one in findings):
        print(f"{run.output}\nits files are in {folder}", file=sys.stderr)
        return 1
    shutil.rmtree(folder)
    return 0


def _start(folder: Path) -> Run:
    install(folder / "site", "tasks", {"asyncrl.observers": {"tasks": "tasks_plugin:Tasks"}})
    paths = [str(folder / "site"), str(ROOT / "tests" / "support"), os.environ.get("PYTHONPATH", "")]
    cache = os.environ.get("ASYNCRL_TEST_CACHE") or str(Path.home() / ".cache" / "asyncrl")
    where = ("--name", "run", "--runs-dir", str(folder / "runs"), "--cache-dir", cache)
    loggers = ("--loggers", "jsonl", "--observers", "tasks")  # what is printed is only read at the end
    return begin(
        *("train", str(DEMO), *where, *FLAGS, *PATIENT, *loggers),
        directory=folder / "runs" / "run",
        cwd=folder,
        env={"PYTHONPATH": os.pathsep.join(paths)},
        patience=900.0,
    )


def _watched(run: Run, seconds: float) -> Watch:
    """Look at the run for so long after its first step."""
    run.wait_for_step(1)
    watch = Watch(run)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert run.process.poll() is None, f"it ended:\n{run.process.communicate()[0]}"
        watch.look()
        time.sleep(EVERY_SECONDS)
    return watch


if __name__ == "__main__":
    sys.exit(main())

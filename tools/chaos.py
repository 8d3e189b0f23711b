"""Kills a run of the demo again and again, at random moments, and sees that it comes out as one that was not killed.

make chaos                                                       30 kills
.venv/bin/python tools/chaos.py --kills 5 --steps 14             fewer, of a shorter run
.venv/bin/python tools/chaos.py --kills 0 --seed 1               none: what accuracy is to be expected

How it is done and what is checked: tests/support/chaos.py. Exit code 1 if something is lost, doubled or left; its files are kept then.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from chaos import Chaos, draw  # noqa: E402
from texts import columns  # noqa: E402


def main() -> int:
    arguments = _parsed()
    folder = Path(tempfile.mkdtemp(prefix="asyncrl-chaos-"))
    moments = draw(arguments.kills, arguments.steps, arguments.seed) if arguments.kills else []
    flags = ("--seed", str(arguments.seed), "--task.seed", "0")  # the same model and prompts for every seed
    chaos = Chaos(folder, _cache(), moments, arguments.steps, arguments.eval_interval, flags)
    try:
        chaos.execute()
        chaos.check()
        print(columns(chaos.table()))
        print(f"{len(chaos.kills)} kills, {chaos.steps} steps, held-out accuracy at the end {chaos.accuracy:.1%}")
        assert chaos.accuracy >= arguments.accuracy, f"an undisturbed run has at least {arguments.accuracy:.1%}"
    except AssertionError:
        traceback.print_exc()
        print(f"{columns(chaos.table())}\nnot as an undisturbed run; its files are in {folder}", file=sys.stderr)
        return 1
    finally:
        chaos.clear()
    shutil.rmtree(folder)
    return 0


def _cache() -> Path:
    return Path(os.environ.get("ASYNCRL_TEST_CACHE") or Path.home() / ".cache" / "asyncrl")


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30, help="how often a process is killed (30)")
    parser.add_argument("--steps", type=int, default=100, help="training steps of the run (100)")
    parser.add_argument("--eval-interval", type=int, default=10, help="steps between two evaluations (10)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and of the run (0)")
    parser.add_argument("--accuracy", type=float, default=0.0, help="least held-out accuracy at the end (0)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

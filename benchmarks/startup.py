"""Start-up with many installed distributions, six of them with plugins that take half a second to import.

    .venv/bin/python benchmarks/startup.py

Each round runs `asyncrl --help`, `asyncrl plugins list` and `python -c "import argparse, pydantic, pluggy"` one after the other, each in a
process of its own with the same path; a ratio is the median over the rounds. Before that both commands run once to see what they
import: none of the plugins, and nothing heavy.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

DISTRIBUTIONS = 200
PLUGINS = 6
ROUNDS = 15
GOAL = 1.6
BARE = [sys.executable, "-c", "import argparse, pydantic, pluggy"]
COMMANDS = {"help": ["--help"], "plugins_list": ["plugins", "list"]}
HEAVY = {"torch", "ray", "transformers", "wandb"}


def install(folder: Path) -> set[str]:
    """Make the distributions as pip leaves them in `folder`; returns the modules of the slow plugins."""
    for index in range(DISTRIBUTIONS):
        slow = index < PLUGINS
        name = f"asyncrl-plugin-slow-{index}" if slow else f"library-{index}"
        place = folder / f"{name.replace('-', '_')}-1.0.dist-info"
        place.mkdir()
        about = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nSummary: What {name} does.\n\n"
        (place / "METADATA").write_text(about + "A description. " * 400)
        points = (
            f"[asyncrl.buffers]\nslow-{index} = slow_{index}:Buffer\n" if slow else f"[console_scripts]\nx = x_{index}:main\n"
        )
        if slow or index % 2:
            (place / "entry_points.txt").write_text(points)
        if slow:
            (folder / f"slow_{index}.py").write_text("import time\ntime.sleep(0.5)\n")
    return {f"slow_{index}" for index in range(PLUGINS)}


def command(arguments: list[str]) -> list[str]:
    return [sys.executable, "-c", "import sys; from asyncrl.cli.main import main; sys.exit(main())", *arguments]


def imported(arguments: list[str], environment: dict[str, str]) -> set[str]:
    """The modules that a command imports."""
    code = (
        "import sys\nfrom asyncrl.cli.main import main\n"
        "try: main()\nexcept SystemExit: pass\nprint('MODULES', *sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], env=environment, capture_output=True, text=True, check=True)
    return set(done.stderr.rsplit("MODULES", 1)[1].split())


def seconds(line: list[str], environment: dict[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run(line, env=environment, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def run() -> list[dict[str, Any]]:
    """Rows for `benchmarks/run.py`."""
    with tempfile.TemporaryDirectory(prefix="asyncrl-startup-") as folder:
        slow = install(Path(folder))
        environment = os.environ | {"PYTHONPATH": folder}
        for arguments in COMMANDS.values():
            if wrong := imported(arguments, environment) & (slow | HEAVY):
                raise RuntimeError(f"asyncrl {' '.join(arguments)} imports {', '.join(sorted(wrong))}")
        ratios: dict[str, list[float]] = {name: [] for name in COMMANDS}
        for _ in range(ROUNDS):
            bare = seconds(BARE, environment)
            for name, arguments in COMMANDS.items():
                ratios[name].append(seconds(command(arguments), environment) / bare)
    return [
        {
            "name": f"startup_{name}",
            "ratio": round(statistics.median(ratios[name]), 3),
            "goal": GOAL,
            "unit": "x",
            "runs": ROUNDS,
            "against": f"importing argparse, pydantic and pluggy, with {DISTRIBUTIONS} distributions installed",
            "better": "lower",
        }
        for name in COMMANDS
    ]


if __name__ == "__main__":
    for row in run():
        print(f"{row['name']:24} {row['ratio']:6.3f} {row['unit']} (goal {row['goal']})")

"""Runs every benchmark in a process of its own, prints one table and writes `benchmarks/results.json`.

    make bench                                       all of them
    .venv/bin/python benchmarks/run.py --only NAME   one module; the other results stay as they are

A benchmark is a module in this folder with `run() -> list[dict]`; README.md says what a row holds. Missing a goal is a result,
not a failure; a benchmark that raises or outlasts its deadline is reported and makes the exit code 1, and the others still run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.json"
DEADLINE_SECONDS = 1800

BENCHMARKS = {
    "demo_async": "the demo, asynchronous against lockstep",
    "engine_throughput": "engine torch against Hugging Face generate",
    "trainer_throughput": "trainer fsdp against a bare PyTorch loop",
    "sample_overhead": "CPU time a sample through task, loop, gate, buffer and batch",
    "buffer_cost": "put, take and metrics with 100,000 groups held",
    "simulation_scale": "CPU time of a simulated group, 1,024 engines against one",
    "eval_inflation": "how much longer a run takes for its evaluations, by backend",
    "hook_call": "a hook with five implementations against pluggy's bare call",
    "startup": "--help and plugins list with 200 distributions installed",
    "publication": "weights to the engines against a memory copy",
    "checkpoints": "a step with a checkpoint after each against none; going on with a run against starting one",
    "sglang_client": "core's client against bare HTTP posts, to a real SGLang server",
    "sglang_publication": "weights to a real SGLang server against a memory copy",
}
"""Those named sglang_… are left out where the environment of `make test-sglang` is missing."""
KEPT = ("ratio", "goal", "unit", "runs", "against")
Row = dict[str, Any]


def measure(module: str, deadline: float = DEADLINE_SECONDS) -> list[Row]:
    """Run one benchmark in a process group of its own and return its rows.

    Raises:
        RuntimeError: it failed, or took longer than `deadline` seconds; nothing of it is left running.
    """
    with tempfile.TemporaryDirectory(prefix="asyncrl-bench-") as folder:
        answer = Path(folder) / "rows.json"
        command = [sys.executable, str(Path(__file__).resolve()), "--child", module, str(answer)]
        child = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, start_new_session=True)
        try:
            code = child.wait(deadline)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"took longer than {deadline:.0f} s") from None
        finally:
            _end_group(child)
        if code:
            raise RuntimeError(f"ended with exit code {code}")
        rows: list[Row] = json.loads(answer.read_text())
        return rows


def sglang_python() -> Path:
    """The interpreter of the environment that has SGLang."""
    return Path(os.environ.get("ASYNCRL_SGLANG_VENV") or HERE.parent / ".venv-sglang") / "bin" / "python"


def _end_group(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def run_child(module: str, answer: Path) -> None:
    """In the child: import the benchmark, run it, leave its rows in a file."""
    sys.path.insert(0, str(HERE))
    answer.write_text(json.dumps(import_module(module).run()))


def reached(row: Row) -> bool:
    """Whether a row meets its goal."""
    if row.get("better", "higher") == "lower":
        return bool(row["ratio"] <= row["goal"])
    return bool(row["ratio"] >= row["goal"])


def table(rows: Sequence[Row]) -> str:
    """Return the rows as aligned text, one line each."""
    cells = [("benchmark", "measured", "goal", "unit", "runs", "", "against")]
    for row in rows:
        sign = "<=" if row.get("better", "higher") == "lower" else ">="
        runs = len(row["runs"]) if isinstance(row["runs"], list) else row["runs"]
        mark = "ok" if reached(row) else "short"
        cells.append(
            (row["name"], f"{row['ratio']:.3g}", f"{sign} {row['goal']:g}", row["unit"], str(runs), mark, row["against"])
        )
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells)


def save(rows: Sequence[Row], path: Path, *, keep_others: bool) -> None:
    """Write `{NAME: {ratio, goal, unit, runs, against}}`; with `keep_others`, results that were not measured now stay."""
    results: dict[str, Row] = json.loads(path.read_text()) if keep_others and path.exists() else {}
    for row in rows:
        results[row["name"]] = {key: row[key] for key in KEPT}
    path.write_text(json.dumps(results, indent=2, sort_keys=True) + "\n")


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 1 if any benchmark failed."""
    if arguments[:1] == ["--child"]:
        run_child(arguments[1], Path(arguments[2]))
        return 0
    parser = argparse.ArgumentParser(description="Measure asyncrl against the alternatives.")
    parser.add_argument("--only", choices=BENCHMARKS, metavar="NAME", help="one of: " + ", ".join(BENCHMARKS))
    only = parser.parse_args(arguments).only
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended on the way out
    rows: list[Row] = []
    failures: dict[str, str] = {}
    chosen = [only] if only else [name for name in BENCHMARKS if sglang_python().exists() or not name.startswith("sglang_")]
    for module in chosen:
        print(f"--- {module}: {BENCHMARKS[module]}", flush=True)
        try:
            rows += measure(module)
        except RuntimeError as error:
            failures[module] = str(error)
    if rows:
        save(rows, RESULTS, keep_others=len(chosen) < len(BENCHMARKS))
        print(f"\n{table(rows)}\n\nwritten to {RESULTS.relative_to(HERE.parent)}")
    for module, reason in failures.items():
        print(f"FAILED {module}: {reason}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The demo, asynchronous against lockstep, through the real command: seconds a step and seconds to the target accuracy.

For each seed both schedulers run one after the other, taking turns at going first, so that a slow minute hits both.
A ratio is lockstep over asynchronous of one seed; the median over the seeds counts. Evaluation time is left out of both
sides: it is the same work. With R seconds of generation and W of training a step, overlapping them gains (R+W)/max(R,W)
at most; that limit is measured from the lockstep runs and printed beside the goal.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SEEDS = (0, 1, 2)
TARGET = 0.95
GOAL = 1.45
WARM_UP_STEPS = 3
DEADLINE_SECONDS = 400
ASYNCHRONOUS, LOCKSTEP = "sample", "lockstep"


@dataclass(frozen=True)
class Measured:
    """One run. Seconds; `to_target` is None when the target was not reached."""

    step: float
    to_target: float | None
    generation: float
    training: float
    best: float

    @property
    def limit(self) -> float:
        """What overlapping could gain at most: (R+W)/max(R,W)."""
        return (self.generation + self.training) / max(self.generation, self.training)


def run() -> list[dict[str, Any]]:
    """Return two rows: step time, and seconds to the target."""
    pairs = []
    with tempfile.TemporaryDirectory(prefix="asyncrl-bench-runs-") as runs_dir:
        for turn, seed in enumerate(SEEDS):
            order = (ASYNCHRONOUS, LOCKSTEP) if turn % 2 == 0 else (LOCKSTEP, ASYNCHRONOUS)
            done = {scheduler: train(scheduler, seed, Path(runs_dir)) for scheduler in order}
            pairs.append((done[ASYNCHRONOUS], done[LOCKSTEP]))
    limit = statistics.median(lockstep.limit for _, lockstep in pairs)
    print(f"measured limit (R+W)/max(R,W): {limit:.2f}", flush=True)
    steps = [lockstep.step / ours.step for ours, lockstep in pairs]
    both = [(ours.to_target, lockstep.to_target) for ours, lockstep in pairs]
    targets = [lockstep / ours for ours, lockstep in both if ours is not None and lockstep is not None]
    if not targets:
        raise RuntimeError(f"no seed reached {TARGET:.0%} under both schedulers")
    against = f"lockstep; limit measured here {limit:.2f}"
    return [
        _row("demo/step_time", steps, against),
        _row("demo/seconds_to_target", targets, against),
    ]


def _row(name: str, ratios: list[float], against: str) -> dict[str, Any]:
    return {
        "name": name,
        "ratio": round(statistics.median(ratios), 3),
        "goal": GOAL,
        "unit": "times as fast",
        "runs": len(ratios),
        "against": against,
    }


def train(scheduler: str, seed: int, runs_dir: Path) -> Measured:
    """Run the demo once through the command and read its run directory.

    Raises:
        RuntimeError: the run failed; the end of its output is in the message.
    """
    name = f"{scheduler}-{seed}"
    command = [str(Path(sys.executable).parent / "asyncrl"), "train", "examples/demo.toml", "--scheduler", scheduler]
    command += ["--name", name, "--runs-dir", str(runs_dir), "--seed", str(seed), "--eval-interval", "5"]
    if scheduler == LOCKSTEP:  # at its best: the whole batch at once
        command += ["--max-concurrent-samples", "256"]
    output = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run(command, cwd=ROOT, timeout=DEADLINE_SECONDS, **output)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with exit code {done.returncode}\n{done.stdout[-3000:]}")
    measured = read_run(runs_dir / name)
    reached = f"{TARGET:.0%} after {measured.to_target:.1f} s" if measured.to_target is not None else f"best {measured.best:.1%}"
    print(f"seed {seed} {scheduler:9} {measured.step * 1000:6.0f} ms a step, {reached}", flush=True)
    return measured


def read_run(directory: Path) -> Measured:
    """Read a finished run: step times from `metrics.jsonl`, accuracy from `evals.jsonl`, busy seconds from `summary.json`."""
    step_seconds = {
        int(line["step"]): line["values"]["run/step_seconds"]
        for line in _lines(directory / "metrics.jsonl")
        if line["axis"] == "train_step" and "run/step_seconds" in line["values"]
    }
    points = [
        (record["step"], min(result["mean_reward"] for result in record["sets"].values()))
        for record in _lines(directory / "evals.jsonl")
        if not record["skipped"]
    ]
    arrival = min((step for step, accuracy in points if accuracy >= TARGET), default=None)
    busy = json.loads((directory / "summary.json").read_text())["busy_seconds"]
    return Measured(
        step=statistics.fmean(seconds for step, seconds in step_seconds.items() if step > WARM_UP_STEPS),
        to_target=None if arrival is None else sum(seconds for step, seconds in step_seconds.items() if step <= arrival),
        generation=busy["engines"] / len(step_seconds),
        training=busy["trainer"] / len(step_seconds),
        best=max(accuracy for _, accuracy in points),
    )


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))

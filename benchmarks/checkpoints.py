"""What checkpoints cost: a step with one after each against a step with none, and going on with a run against starting one.

Steps are those of the real trainer on the demo's model and batches, saved by the run's own `RunCheckpoints`, with what it writes in the
background and what waits for it. Turns of a few steps take turns: none, in the background, and waited for, which is what a
checkpoint would cost if training stood still for it. The time of a start is that of the real command, until everything has started.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from asyncrl import Exported
from asyncrl.training.checkpoints import RunCheckpoints
from asyncrl_fsdp import FsdpTrainer
from trainer_throughput import make_batch, make_model, open_trainer

ROOT = Path(__file__).resolve().parent.parent
STEPS, TURNS = 8, 7
STARTS = 3
GOAL_STEP, GOAL_RESUME = 1.1, 1.25
DEADLINE_SECONDS = 600
MODES = ("none", "background", "waited")


def run() -> list[dict[str, Any]]:
    """Return two rows, step time and time of a resumed start, each with what was measured beside it."""
    return [asyncio.run(step_time()), resume_time()]


class Rank:
    """A rank as its actor runs it: training on one thread, writing on another."""

    def __init__(self, trainer: FsdpTrainer) -> None:
        self.trainer = trainer
        self._training, self._writing = ThreadPoolExecutor(1), ThreadPoolExecutor(1)

    async def train(self, seed: int) -> None:
        await self._call(self._training, self.trainer.train_batch, make_batch(seed))

    async def capture(self) -> None:
        await self._call(self._training, self.trainer.capture_trainer)

    async def save(self, directory: Path, model: Path) -> Exported:
        exported: Exported = await self._call(self._writing, self.trainer.save_trainer, directory, model)
        return exported

    async def _call(self, thread: ThreadPoolExecutor, function: Any, *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(thread, function, *arguments)


async def step_time() -> dict[str, Any]:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="asyncrl-bench-") as folder:
        place = Path(folder)
        make_model(place)
        trainer = open_trainer(place)
        try:
            checkpoints = RunCheckpoints(
                place / "checkpoints",
                interval=1,
                keep=2,
                trainer=(rank := Rank(trainer)),
                run_state=_no_run_state,
                on_saved=lambda step, path: None,
            )
            turns = [await one_turn(rank, checkpoints, number) for number in range(TURNS + 1)][1:]
        finally:
            trainer.trainer_close()
    against = statistics.median(turn["waited"] / turn["none"] for turn in turns)
    return {
        "name": "checkpoint/step_time",
        "ratio": round(statistics.median(turn["background"] / turn["none"] for turn in turns), 3),
        "goal": GOAL_STEP,
        "unit": "times the step",
        "runs": TURNS,
        "against": f"no checkpoints; {against:.3g} if training waited for each",
        "better": "lower",
    }


async def one_turn(rank: Rank, checkpoints: RunCheckpoints, number: int) -> dict[str, float]:
    """Return seconds a step in each mode; the last checkpoint of the turn is waited for."""
    seconds: dict[str, float] = {}
    shift = number % len(MODES)
    for order, mode in enumerate(MODES[shift:] + MODES[:shift]):
        first = (number * len(MODES) + order) * STEPS + 1
        began = time.perf_counter()
        for step in range(first, first + STEPS):
            await rank.train(step)
            if mode != "none":
                await checkpoints.after_step(step, last=False)
            if mode == "waited":
                await checkpoints.settle()
        await checkpoints.settle()
        seconds[mode] = (time.perf_counter() - began) / STEPS
    told = ", ".join(f"{mode} {seconds[mode] * 1e3:.0f} ms" for mode in MODES)
    print(f"turn {number}: a step with checkpoints {told}; load {os.getloadavg()[0]:.0f}", flush=True)
    return seconds


async def _no_run_state() -> tuple[dict[str, Any], dict[str, Any]]:
    return {}, {}


def resume_time() -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="asyncrl-bench-runs-") as runs_dir:
        ratios = [one_start(Path(runs_dir), f"run-{number}") for number in range(STARTS)]
    return {
        "name": "checkpoint/resume_time",
        "ratio": round(statistics.median(ratios), 3),
        "goal": GOAL_RESUME,
        "unit": "times the start",
        "runs": STARTS,
        "against": "the start of the demo, until its first batch can be asked for",
        "better": "lower",
    }


def one_start(runs_dir: Path, name: str) -> float:
    """Start a run of two steps, then go on with it for a third; return the seconds of the second start over those of the first."""
    where = ["--eval-interval", "0", "--loggers", "jsonl"]
    fresh = seconds_to_start(
        ["train", "examples/demo.toml", "--runs-dir", str(runs_dir), "--name", name, "--steps", "2", *where], runs_dir / name
    )
    again = seconds_to_start(["resume", str(runs_dir / name), "--steps", "3"], runs_dir / name)
    print(f"{name}: {fresh:.1f} s to start, {again:.1f} s to go on; load {os.getloadavg()[0]:.0f}", flush=True)
    return again / fresh


def seconds_to_start(arguments: list[str], directory: Path) -> float:
    """Run the command to its end; return the seconds until it said that it had the model. Raises `RuntimeError` if it failed."""
    began = datetime.datetime.now()
    command = [str(Path(sys.executable).parent / "asyncrl"), *arguments]
    output = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run(command, cwd=ROOT, timeout=DEADLINE_SECONDS, **output)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with exit code {done.returncode}\n{done.stdout[-3000:]}")
    line = [line for line in (directory / "log.txt").read_text().splitlines() if line.endswith(" parameters")][-1]
    return (datetime.datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f") - began).total_seconds()


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))

"""Whether all lives of a run together are one run: every prompt trained once or ended with a reason, no step missing or twice."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from asyncrl.training.stored import choose
from fake_distributions import install
from live import Run

OBSERVED = ("--observers", "ends")
"""Flags of a run whose prompts can be counted."""


def observing(folder: Path) -> dict[str, str]:
    """Install the observer that writes down how prompts end; return the environment of runs that use it."""
    install(folder, "ends", {"asyncrl.observers": {"ends": "ends_plugin:Ends"}})
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])}


def contents(directory: Path) -> dict[Path, bytes]:
    """Return every file of a run's directory but lock and logs."""
    kept = (path for path in directory.rglob("*") if path.relative_to(directory).parts[0] not in ("run.lock", "log.txt", "logs"))
    return {path: path.read_bytes() for path in kept if path.is_file()}


def check_whole(run: Run, steps: int, *, batch_size: int = 16, evals: Sequence[int] = (), lives: int = 1) -> None:
    """See that a run with `OBSERVED` came to its end as if nothing had ever stopped it.

    Args:
        evals: the steps that have an eval point.
        lives: how often training may have begun: by a command, and when the trainer was made anew.
    """
    assert run.summary["outcome"] == "completed" and run.summary["steps"] == steps
    check_steps(run, steps, lives)
    assert [line["step"] for line in run.evals()] == list(evals)
    assert [line["step"] for line in run.metrics("eval_step")] == list(evals)
    check_prompts(run, steps * batch_size)
    assert run.left_behind() == []


def check_steps(run: Run, steps: int, lives: int) -> None:
    """Each step is in each file once, in order."""
    wanted = list(range(1, steps + 1))
    assert [line["step"] for line in run.metrics()] == wanted
    assert [line["step"] for line in run.lines("steps.jsonl")] == wanted
    seconds = [line["step"] for line in run.metrics("wall_seconds")]
    assert steps <= len(seconds) <= steps + lives  # what is left at the end of one has a line of its own
    assert seconds == sorted(set(seconds))


def check_prompts(run: Run, num_trained: int) -> None:
    """Each prompt that was ever issued was trained in one batch, or ended with a reason, or is open in the last checkpoint's ledger."""
    traced = [line["prompt_id"] for line in run.lines("trace.jsonl")]
    assert len(traced) == len(set(traced))
    batches = {step: prompts for step, prompts in run.lines("batches.jsonl")}  # a step that was trained again: its later line
    trained = [prompt for prompts in batches.values() for prompt in prompts]
    assert len(trained) == len(set(trained)) == num_trained, "a prompt was trained twice, or not at all"

    ledger = choose(run.directory / "checkpoints").run["rollout"]["ledger"]
    still_open = {prompt for prompt, _ in ledger["open"]}
    issued = set(range(ledger["cursor"]))
    assert ledger["trained"] == num_trained
    assert issued >= set(trained) and issued >= still_open and not still_open & set(trained)
    fates = {prompt: fate for prompt, fate in run.lines("fates.jsonl")}  # one that ended again after a resume: its later line
    reasons = Counter(fates.get(prompt, "never said") for prompt in issued - set(trained) - still_open)
    assert reasons == ledger["dropped"], "a prompt ended without a reason, or twice"

    books = run.summary["books"]
    assert books["trained"] == num_trained
    assert books["issued"] == books["trained"] + books["unfinished"] + sum(books["dropped"].values())

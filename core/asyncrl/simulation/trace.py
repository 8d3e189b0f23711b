"""Reads recorded lengths and times: a `trace.jsonl`, or the directory of a finished run, which has the trainer's times too."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from asyncrl.errors import DataError, RunDirectoryError
from asyncrl.simulation.lengths import RecordedGroup
from asyncrl.simulation.options import MOST_SECONDS, MOST_TOKENS

SHORTEST = 1e-6
"""Seconds of a sample whose recorded time was too short to be seen."""
GREATEST_REWARD = 1e15
"""Rewards are float32, and so are the squares that their variance is made of."""
MOST_PROMPTS = 2**63 - 1

LINE_FORMAT = (
    'a line is a number of tokens, a list of them, or {"tokens": […]} with "seconds", "rewards" and "prompt_id" as known'
)


@dataclass(frozen=True)
class RunTimes:
    """What a finished run measured, from its `summary.json` and `steps.jsonl`. Seconds.

    Attributes:
        steps: training steps done.
        step: mean of a step without its evaluation: the trainer's wait for the batch, `trainer` and `paused`.
        staleness: mean in versions over the groups trained.
        trainer_mean: mean of what a step needs the trainer for while the engines go on: training, the export of a publication, a
            checkpoint.
        trainer: the same of each step; empty where the run could not write it down.
        paused: mean of one publication in which the engines stood still.
        evaluation: mean of one evaluation that came after a step; 0 without any.
    """

    steps: int
    step: float
    staleness: float
    trainer_mean: float
    trainer: tuple[float, ...]
    paused: float
    evaluation: float

    def trainer_seconds(self, step: int) -> float:
        """Return `trainer` of a step, counted from 1; the mean for one that was not recorded."""
        return self.trainer[step - 1] if step <= len(self.trainer) else self.trainer_mean


@dataclass(frozen=True)
class Trace:
    """What was recorded.

    Attributes:
        source: the file it comes from.
        groups: by prompt id, which is the order in which they were issued: a simulation that issues them in the order in which they
            finished would start with the short ones. A sample that failed without a token has one token here, because it held a slot.
        times: None where only a file was given.
    """

    source: Path
    groups: tuple[RecordedGroup, ...]
    times: RunTimes | None


def read_trace(path: Path) -> Trace:
    """Read a trace file, or a finished run's directory.

    Raises:
        DataError: the file can't be read, or a line is wrong; the origin names file and line.
        RunDirectoryError: the directory is no run's, or its run has not finished or recorded no trace.
    """
    if not os.path.isdir(path):  # unlike `Path.is_dir`, it takes any text
        return Trace(path, _read_groups(path), None)
    summary = path / "summary.json"
    if not (path / "config.toml").is_file():
        raise RunDirectoryError("is no run's directory: it has no config.toml", origin=str(path))
    if not summary.is_file():
        raise RunDirectoryError("the run has not finished: it has no summary.json", origin=str(path))
    if not (path / "trace.jsonl").is_file():
        raise RunDirectoryError(
            "the run recorded no trace.jsonl", origin=str(path), remedy="no group finished, or trace_groups was 0"
        )
    return Trace(path / "trace.jsonl", _read_groups(path / "trace.jsonl"), _read_times(summary, _read_steps(path)))


def _read_groups(path: Path) -> tuple[RecordedGroup, ...]:
    groups = [_group(line, f"{path}:{number}", number - 1) for number, line in _lines(path)]
    if not any(known for _, _, known in groups):
        raise DataError("holds no lengths", origin=str(path), remedy=LINE_FORMAT)
    return tuple(group for _, group, _ in sorted(groups, key=itemgetter(0)))


def _group(line: str, origin: str, index: int) -> tuple[int, RecordedGroup, int]:
    """Return prompt id, group, and the number of its tokens."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise DataError(f"is no JSON: {_shortened(line.strip())}", origin=origin, remedy=LINE_FORMAT) from None
    if isinstance(value, int):
        value = [value]
    if isinstance(value, list):
        value = {"tokens": value}
    if not isinstance(value, dict) or "tokens" not in value:
        raise DataError(f"has no tokens: {_shortened(line.strip())}", origin=origin, remedy=LINE_FORMAT)
    tokens = _list(value, "tokens", _is_length, f"whole numbers, 0 to {MOST_TOKENS}", origin)
    if not tokens:
        raise DataError("tokens is empty", origin=origin, remedy="a group has at least one sample")
    seconds = _list(value, "seconds", _is_time, f"numbers, 0 to {MOST_SECONDS:g}", origin)
    rewards = _list(value, "rewards", _is_reward, f"numbers, {-GREATEST_REWARD:g} to {GREATEST_REWARD:g}", origin)
    for name, values in (("seconds", seconds), ("rewards", rewards)):
        if name in value and len(values) != len(tokens):
            raise DataError(f"has {len(values)} {name} for {len(tokens)} samples", origin=origin)
    prompt_id = value.get("prompt_id", index)
    if not _is_whole(prompt_id, MOST_PROMPTS):
        right = f"right is a whole number, 0 to {MOST_PROMPTS}"
        raise DataError(f"prompt_id is {_shortened(json.dumps(prompt_id))}", origin=origin, remedy=right)
    group = RecordedGroup(
        tokens=tuple(max(count, 1) for count in tokens),
        seconds=tuple(max(float(each), SHORTEST) for each in seconds),
        rewards=tuple(map(float, rewards)),
    )
    return prompt_id, group, sum(tokens)


def _list(value: Mapping[str, Any], name: str, fits: Callable[[Any], bool], right: str, origin: str) -> tuple[Any, ...]:
    given = value.get(name, [])
    wrong = [item for item in given if not fits(item)] if isinstance(given, list) else [given]
    if wrong:
        raise DataError(f"{name} holds {_shortened(json.dumps(wrong[0]))}", origin=origin, remedy=f"right are {right}")
    return tuple(given)


def _read_steps(directory: Path) -> tuple[float, ...]:
    path = directory / "steps.jsonl"
    return tuple(_step(line, f"{path}:{number}") for number, line in _lines(path)) if path.exists() else ()


def _step(line: str, origin: str) -> float:
    try:
        step = json.loads(line)
        seconds = float(step["train"] + step["publish"] - step["paused"] + step["checkpoint"])
    except (ValueError, LookupError, TypeError, OverflowError) as cause:
        raise DataError(f"is no step's times: {_shortened(line.strip())}", origin=origin) from cause
    if not -MOST_SECONDS <= seconds <= MOST_SECONDS:
        raise DataError(f"says {seconds:g} seconds", origin=origin, remedy=f"right is at most {MOST_SECONDS:g}")
    return max(seconds, 0.0)  # the pause is timed by another process


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not empty with their numbers."""
    try:
        with path.open(encoding="utf-8") as file:
            yield from ((number, line) for number, line in enumerate(file, 1) if line.strip())
    except FileNotFoundError:
        raise DataError("there is no such file", origin=str(path)) from None
    except OSError as cause:
        raise DataError(f"can't be read: {cause.strerror}", origin=str(path)) from cause
    except UnicodeDecodeError as cause:
        raise DataError(f"is no UTF-8 text: {cause.reason}", origin=str(path)) from cause
    except ValueError as cause:  # a null character
        raise DataError(f"is no name of a file: {cause}", origin=repr(str(path))) from cause


def _read_times(path: Path, trainer: tuple[float, ...]) -> RunTimes:
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        steps, seconds = int(summary["steps"]), {name: float(value) for name, value in summary["seconds"].items()}
        publications, evaluations = int(summary["publications"]), int(summary["evaluations"])
        times = RunTimes(
            steps=steps,
            step=seconds["step"],
            staleness=float(summary["staleness"]["mean"]),
            trainer_mean=max(seconds["step"] - seconds["wait"] - seconds["paused"], 0.0),
            trainer=trainer,
            paused=seconds["paused"] * steps / max(publications, 1),
            evaluation=seconds["evaluation"] * steps / max(evaluations, 1),
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError) as cause:
        raise RunDirectoryError(
            f"can't be read: {type(cause).__name__}: {cause}",
            origin=str(path),
            remedy="was it written by this version of asyncrl?",
        ) from cause
    if steps < 1:
        raise RunDirectoryError("the run has not finished a single step", origin=str(path))
    for name in ("step", "trainer_mean", "paused", "evaluation"):
        if not 0 <= getattr(times, name) <= MOST_SECONDS:
            remedy = f"right is 0 to {MOST_SECONDS:g}"
            raise RunDirectoryError(f"its times say {getattr(times, name):g} seconds", origin=str(path), remedy=remedy)
    if not 0 <= times.staleness <= times.steps:
        raise RunDirectoryError(f"says a mean staleness of {times.staleness:g} in {steps} steps", origin=str(path))
    return times


def _is_whole(value: Any, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def _is_length(value: Any) -> bool:
    return _is_whole(value, MOST_TOKENS)


def _lies(value: Any, least: float, most: float) -> bool:
    """Compares, and converts nothing: an integer may be too large for a float."""
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def _is_reward(value: Any) -> bool:
    return _lies(value, -GREATEST_REWARD, GREATEST_REWARD)


def _is_time(value: Any) -> bool:
    return _lies(value, 0, MOST_SECONDS)


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}…"

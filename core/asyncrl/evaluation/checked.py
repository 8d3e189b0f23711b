"""What a backend answers: every set that it was asked for, as plain numbers that files and loggers take; anything else is its fault."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from asyncrl.errors import PluginFailed
from asyncrl.evaluation.records import Checkpoint, EvalResult, EvalSets, SetResult
from asyncrl.host import Host

FRACTIONS = ("failed", "truncated", "mixed_version")
COUNTS = ("num_prompts", "num_samples")
NUMBERS = tuple(one.name for one in fields(SetResult) if one.name not in ("samples", "pass_at"))


async def ask_backend(host: Host, checkpoint: Checkpoint, sets: EvalSets) -> EvalResult:
    """Return what the eval backend of `host` says of a checkpoint.

    Raises:
        EvalSkip: the backend raised it.
        PluginFailed: it raised something else, ended itself, or answered without one of the sets, or with one that nobody asked for.
    """
    try:
        result: EvalResult = await host.one("evaluate_checkpoint")(checkpoint=checkpoint, sets=sets)
    except (asyncio.CancelledError, KeyboardInterrupt) as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        raise PluginFailed(f"{host.owner('evaluate_checkpoint')} raised {type(error).__name__} in evaluate_checkpoint") from error
    asked, answered = {one.name for one in sets.sets}, set(checked_sets(result))
    if wrong := sorted(asked ^ answered):
        what = "without the set" if wrong[0] in asked else "with a set that it was not asked for:"
        raise PluginFailed(
            f"{host.owner('evaluate_checkpoint')} answered {what} {wrong[0]!r}; right is every set that was asked for"
        )
    return result


def checked_sets(result: Any) -> Mapping[str, SetResult]:
    """Return the sets' results; numbers of other libraries, such as those of numpy, are made Python's.

    Raises:
        TypeError: it is no `EvalResult` of `SetResult`s, or something in it is no number.
        ValueError: a number is not finite, or a fraction does not lie in 0 to 1.
    """
    if not isinstance(result, EvalResult):
        raise TypeError(f"it returned {type(result).__name__}, wants an EvalResult")
    if not isinstance(result.sets, Mapping):
        raise TypeError(f"it returned an EvalResult of {type(result.sets).__name__}, wants results by the names of the sets")
    return {str(name): _checked(str(name), one) for name, one in result.sets.items()}


def _checked(name: str, one: Any) -> SetResult:
    if not isinstance(one, SetResult):
        raise TypeError(f"it returned {type(one).__name__} for set {name!r}, wants a SetResult")
    numbers: dict[str, Any] = {
        key: _number(f"{key} of set {name!r}", getattr(one, key), fraction=key in FRACTIONS) for key in NUMBERS
    }
    if not isinstance(one.pass_at, Mapping) or not all(isinstance(k, int) for k in one.pass_at):
        raise TypeError(f"pass_at of set {name!r} is {one.pass_at!r}, wants numbers by k")
    pass_at = {k: _number(f"pass@{k} of set {name!r}", value, fraction=True) for k, value in one.pass_at.items()}
    return replace(one, **numbers | {key: int(numbers[key]) for key in COUNTS}, pass_at=pass_at)


def _number(what: str, value: Any, *, fraction: bool) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{what} is {value!r}, wants a number") from error
    if not math.isfinite(number) or (fraction and not -1e-6 <= number <= 1 + 1e-6):
        raise ValueError(f"{what} is {number}, wants {'a fraction of 1' if fraction else 'a finite number'}")
    return number

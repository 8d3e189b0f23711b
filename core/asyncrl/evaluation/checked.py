"""What a backend returned, as plain numbers that files and loggers take; anything else is its fault."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from asyncrl.evaluation.records import EvalResult, SetResult

FRACTIONS = ("failed", "truncated", "mixed_version")
COUNTS = ("num_prompts", "num_samples")
NUMBERS = tuple(one.name for one in fields(SetResult) if one.name not in ("samples", "pass_at"))


def checked_sets(result: Any) -> Mapping[str, SetResult]:
    """Return the sets' results; numbers of other libraries, such as those of numpy, are made Python's.

    Raises:
        TypeError: it is no `EvalResult` of `SetResult`s, or something in it is no number.
        ValueError: a number is not finite, or a fraction does not lie in 0 to 1.
    """
    if not isinstance(result, EvalResult):
        raise TypeError(f"it returned {type(result).__name__}, wants an EvalResult")
    return {str(name): _checked(str(name), one) for name, one in result.sets.items()}


def _checked(name: str, one: Any) -> SetResult:
    if not isinstance(one, SetResult):
        raise TypeError(f"it returned {type(one).__name__} for set {name!r}, wants a SetResult")
    numbers: dict[str, Any] = {
        key: _number(f"{key} of set {name!r}", getattr(one, key), fraction=key in FRACTIONS) for key in NUMBERS
    }
    pass_at = {int(k): _number(f"pass@{k} of set {name!r}", value, fraction=True) for k, value in one.pass_at.items()}
    return replace(one, **numbers | {key: int(numbers[key]) for key in COUNTS}, pass_at=pass_at)


def _number(what: str, value: Any, *, fraction: bool) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{what} is {value!r}, wants a number") from error
    if not math.isfinite(number) or (fraction and not -1e-6 <= number <= 1 + 1e-6):
        raise ValueError(f"{what} is {number}, wants {'a fraction of 1' if fraction else 'a finite number'}")
    return number

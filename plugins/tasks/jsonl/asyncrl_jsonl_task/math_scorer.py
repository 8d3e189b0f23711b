"""The math scorer, run in scoring processes: math-verify on hostile text, without the time limits of its own that would not hold.

Those use `signal.alarm`; here the process is killed instead. math-verify hands text to sympy's parser only after a pattern has reduced
it to digits, dots, brackets and arithmetic operators; LaTeX goes through a grammar. Nothing evaluates a completion as code.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from math_verify import parse, verify  # here, so that the import counts as starting and not as scoring

ANCHORS = ("$", "\\boxed", "\\(", "\\[")


def score(completion: str, answer: str) -> bool:
    """Whether the completion's final expression equals the answer.

    Raises:
        ValueError: the answer itself is no expression.
    """
    return bool(verify(_expected(answer), _parsed(completion), timeout_seconds=None))


def _parsed(text: str) -> list[Any]:
    return list(parse(text, parsing_timeout=None))  # type: ignore[arg-type]


@lru_cache(maxsize=4096)
def _expected(answer: str) -> list[Any]:
    anchored = any(anchor in answer for anchor in ANCHORS)
    expected = _parsed(answer if anchored else f"\\boxed{{{answer}}}")
    if all(isinstance(found, str) for found in expected):  # the text itself comes back when it can't be parsed
        raise ValueError(f"the answer {answer!r:.200} is no mathematical expression")
    return expected

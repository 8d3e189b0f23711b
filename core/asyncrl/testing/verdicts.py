"""What an answer to judge_group or judge_staleness must look like."""

from __future__ import annotations

from asyncrl.ledger import reason_word
from asyncrl.rollout.verdicts import Verdict
from asyncrl.testing.rules import expect


def check_verdict(hook: str, verdict: object, *, retries: bool) -> None:
    """Fail unless `verdict` is one that core understands.

    Args:
        retries: whether retry(reason) is one of them.
    """
    known = ("keep", "drop", "retry") if retries else ("keep", "drop")
    right = "KEEP, drop(reason) or retry(reason)" if retries else "KEEP or drop(reason)"
    expect(
        isinstance(verdict, Verdict) and verdict.action in known,
        promised=f"{hook} answers {right}",
        happened=f"it answered {verdict!r}",
        fix=f"return {right}, never None, True or False",
    )
    assert isinstance(verdict, Verdict)
    expect(
        verdict.action == "keep" or (verdict.reason and reason_word(verdict.reason) == verdict.reason),
        promised="the reason of a refusal is one short word, which becomes a metric's label",
        happened=f"it was {verdict.reason!r}",
        fix=f"write {reason_word(verdict.reason)!r}, or another word of letters, digits, '_', '-' and '.'",
    )

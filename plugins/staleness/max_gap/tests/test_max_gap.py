"""`max-gap` bounds the age of every trained token."""

from __future__ import annotations

import numpy as np
import pytest
from asyncrl import KEEP, Deadline, Group, Prompt, RunFacts, Sample, Status, drop, full_mask, retry
from asyncrl.samples import Spans
from asyncrl_max_gap import MaxGap
from pydantic import ValidationError


def group(*samples: Sample) -> Group:
    return Group(Prompt(0, np.zeros(1, np.int32)), samples)


def sample(spans: Spans = ((0, 2),), reward: float = 0.0) -> Sample:
    count = sum(tokens for _, tokens in spans)
    return Sample(np.zeros(count, np.int32), np.zeros(count, np.float32), full_mask(count), spans, Status.COMPLETED, reward)


def policy(on_unused: str = "drop", **options: object) -> MaxGap:
    run = RunFacts(batch_size=1, group_size=1, max_concurrent_samples=1, steps=1, on_unused=on_unused)
    return MaxGap(MaxGap.Options(**options), run)


@pytest.mark.parametrize(("bound", "version", "kept"), [(0, 3, True), (0, 4, False), (2, 5, True), (2, 6, False)])
def test_the_bound_is_inclusive(bound: int, version: int, kept: bool) -> None:
    verdict = policy(max_staleness=bound).judge_staleness(group(sample(((3, 2),))), version)
    assert (verdict is KEEP) == kept


def test_the_oldest_token_of_the_group_counts() -> None:
    mixed = group(sample(((5, 4),)), sample(((2, 1), (5, 3))))
    assert policy(max_staleness=2).judge_staleness(mixed, 5) == drop("stale")
    assert policy(max_staleness=3).judge_staleness(mixed, 5) is KEEP


@pytest.mark.parametrize(
    ("on_unused", "on_stale", "verdict"),
    [
        ("drop", None, drop("stale")),
        ("retry", None, retry("stale")),
        ("retry", "drop", drop("stale")),
        ("drop", "retry", retry("stale")),
    ],
)
def test_a_refused_prompt_is_treated_as_on_unused_says_unless_told_otherwise(
    on_unused: str, on_stale: str, verdict: object
) -> None:
    assert policy(on_unused, max_staleness=0, on_stale=on_stale).judge_staleness(group(sample()), 1) == verdict


@pytest.mark.parametrize(("on_stale", "waits"), [(None, False), ("drop", False), ("retry", False), ("wait", True)])
def test_the_deadline_is_the_last_version_that_is_kept(on_stale: str | None, waits: bool) -> None:
    judge = policy(max_staleness=2, on_stale=on_stale)
    assert judge.staleness_deadline(5) == Deadline(7, waits)
    assert judge.judge_staleness(group(sample(((5, 2),))), 7) is KEEP
    assert judge.judge_staleness(group(sample(((5, 2),))), 8) is not KEEP


@pytest.mark.parametrize(("on_unused", "verdict"), [("drop", drop("stale")), ("retry", retry("stale"))])
def test_a_group_for_which_waiting_came_too_late_is_treated_as_on_unused_says(on_unused: str, verdict: object) -> None:
    assert policy(on_unused, max_staleness=0, on_stale="wait").judge_staleness(group(sample()), 1) == verdict


def test_a_negative_bound_is_refused() -> None:
    with pytest.raises(ValidationError):
        MaxGap.Options(max_staleness=-1)


def test_the_staleness_of_refused_groups_is_measured() -> None:
    judge = policy(max_staleness=1)
    for version in (1, 3, 5):
        judge.judge_staleness(group(sample()), version)
    [recorded] = judge.metrics.drain().values()
    assert recorded[""] == [2, 8, 3, 5]

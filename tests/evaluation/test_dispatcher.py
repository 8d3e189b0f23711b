"""Every due point ends as exactly one record, whatever the backend does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from asyncrl.errors import EvalSkip, RunError
from asyncrl.evaluation.dispatcher import BlockingEvals
from asyncrl.evaluation.records import Checkpoint, EvalRecord, EvalResult


def make(
    evaluate: Callable[[Checkpoint], Awaitable[EvalResult]], records: list[EvalRecord], *, interval: int = 2, timeout: float = 60
) -> BlockingEvals:
    return BlockingEvals(interval=interval, before=True, evaluate=evaluate, record=records.append, timeout=timeout)


async def works(checkpoint: Checkpoint) -> EvalResult:
    return EvalResult({})


async def skips(checkpoint: Checkpoint) -> EvalResult:
    raise EvalSkip("unhealthy")


async def crashes(checkpoint: Checkpoint) -> EvalResult:
    raise RunError("boom")


async def hangs(checkpoint: Checkpoint) -> EvalResult:
    await asyncio.sleep(3600)
    return EvalResult({})


async def test_points_are_due_before_training_at_each_interval_and_at_the_end() -> None:
    records: list[EvalRecord] = []
    evals = make(works, records)
    await evals.before_training(0)
    for step in range(1, 6):
        await evals.after_step(step, version=step, lag_steps=0, last=step == 5)
    assert [(record.step, record.version) for record in records] == [(0, 0), (2, 2), (4, 4), (5, 5)]


async def test_the_last_point_is_one_record_also_when_its_step_is_due_anyway() -> None:
    records: list[EvalRecord] = []
    await make(works, records).after_step(4, 4, lag_steps=0, last=True)
    assert len(records) == 1


@pytest.mark.parametrize(("backend", "reason"), [(skips, "unhealthy"), (crashes, "crashed"), (hangs, "unhealthy")])
async def test_a_failing_backend_is_a_skip_with_its_reason_and_never_ends_the_run(backend, reason: str) -> None:
    records: list[EvalRecord] = []
    await make(backend, records, timeout=0.05).after_step(2, 2, lag_steps=0, last=False)
    assert [record.skipped for record in records] == [reason]


async def test_interval_0_evaluates_nothing() -> None:
    records: list[EvalRecord] = []
    evals = make(works, records, interval=0)
    await evals.before_training(0)
    await evals.after_step(1, 1, lag_steps=0, last=True)
    assert records == []


async def test_a_record_says_how_many_steps_its_version_lies_back() -> None:
    """Field reports 24 and 26."""
    records: list[EvalRecord] = []
    evals = make(works, records)
    await evals.after_step(2, 1, lag_steps=1, last=False)
    await evals.after_step(4, 3, lag_steps=0, last=False)
    assert [(record.step, record.version, record.lag_steps) for record in records] == [(2, 1, 1), (4, 3, 0)]

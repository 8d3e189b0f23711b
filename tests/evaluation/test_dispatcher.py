"""Every due point ends as exactly one record, whatever the backend does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from asyncrl.errors import EvalSkip, PluginFailed, RunError
from asyncrl.evaluation.dispatcher import EvalDispatcher
from asyncrl.evaluation.records import Checkpoint, EvalRecord, EvalResult
from asyncrl.evaluation.snapshots import Snapshots
from asyncrl.simulation.clock import run_virtual

Evaluate = Callable[[Checkpoint], Awaitable[EvalResult]]


def make(evaluate: Evaluate, records: list[EvalRecord], **options: Any) -> EvalDispatcher:
    defaults: dict[str, Any] = {"interval": 2, "before": True, "blocking": True, "timeout": 60.0, "snapshots": Snapshots()}
    return EvalDispatcher(evaluate=evaluate, record=records.append, **(defaults | options))


def takes(seconds: float, order: list[int] | None = None) -> Evaluate:
    async def evaluate(checkpoint: Checkpoint) -> EvalResult:
        if order is not None:
            order.append(checkpoint.step)
        await asyncio.sleep(seconds)
        return EvalResult({})

    return evaluate


def raises(error: BaseException) -> Evaluate:
    async def evaluate(checkpoint: Checkpoint) -> EvalResult:
        raise error

    return evaluate


async def train(evals: EvalDispatcher, steps: int, *, step_seconds: float = 1.0, first: int = 1) -> None:
    """What the training loop does: a version a step."""
    if first == 1:
        await evals.before_training(0)
    for step in range(first, steps + 1):
        await asyncio.sleep(step_seconds)
        await evals.after_step(step, step, lag_steps=0, last=step == steps)
    await evals.settle()


def brief(records: list[EvalRecord]) -> list[tuple[int, str]]:
    return [(record.step, record.skipped) for record in records]


def test_points_are_due_before_training_at_each_interval_and_at_the_end() -> None:
    records: list[EvalRecord] = []
    run_virtual(train(make(takes(1), records), 5))
    assert [(record.step, record.version) for record in records] == [(0, 0), (2, 2), (4, 4), (5, 5)]


def test_the_last_point_is_one_record_also_when_its_step_is_due_anyway() -> None:
    records: list[EvalRecord] = []
    run_virtual(train(make(takes(1), records, before=False), 4))
    assert brief(records) == [(2, ""), (4, "")]


def test_interval_0_evaluates_nothing() -> None:
    records: list[EvalRecord] = []
    run_virtual(train(make(takes(1), records, interval=0), 3))
    assert records == []


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize(
    ("backend", "reason", "why"),
    [
        (raises(EvalSkip("unhealthy")), "unhealthy", ""),
        (raises(EvalSkip("out of credit: the service says 402")), "out_of_credit", "the service says 402"),
        (raises(RunError("its process died")), "crashed", "its process died"),
        (raises(PluginFailed("KeyError in evaluate_checkpoint")), "crashed", "KeyError in evaluate_checkpoint"),
        (raises(ZeroDivisionError()), "crashed", "ZeroDivisionError"),
        (raises(TimeoutError("of the backend's own")), "crashed", "of the backend's own"),
        (raises(asyncio.CancelledError("of the backend's own")), "crashed", "of the backend's own"),
        (takes(3600), "unhealthy", "no result within 60 s"),
    ],
)
def test_a_failing_backend_is_a_skip_with_its_reason_and_never_ends_the_run(
    blocking: bool, backend: Evaluate, reason: str, why: str
) -> None:
    records: list[EvalRecord] = []
    run_virtual(train(make(backend, records, before=False, blocking=blocking), 4))
    assert brief(records) == [(2, reason), (4, reason)]
    assert [record.detail.get("why", "") for record in records] == [why, why]


def test_a_backend_that_returns_something_else_has_crashed() -> None:
    async def evaluate(checkpoint: Checkpoint) -> Any:
        return {"accuracy": 1.0}

    records: list[EvalRecord] = []
    run_virtual(train(make(evaluate, records, before=False), 2))
    assert brief(records) == [(2, "crashed")]
    assert records[0].detail["why"] == "it returned dict, wants an EvalResult"


def test_training_waits_for_a_backend_on_the_rollout_engines_and_not_for_another() -> None:
    async def seconds(*, blocking: bool) -> float:
        evals = make(takes(5), [], before=False, interval=1, blocking=blocking)
        await evals.after_step(1, 1, lag_steps=0, last=False)
        waited = asyncio.get_running_loop().time()
        await evals.settle()
        return waited

    assert run_virtual(seconds(blocking=True)) == pytest.approx(5)
    assert run_virtual(seconds(blocking=False)) == 0


def test_a_record_of_a_backend_on_the_rollout_engines_says_how_many_steps_its_version_lies_back() -> None:
    """Field reports 24 and 26."""

    async def scenario() -> None:
        await evals.after_step(2, 1, lag_steps=1, last=False)
        await evals.after_step(4, 3, lag_steps=0, last=False)

    records: list[EvalRecord] = []
    evals = make(takes(1), records)
    run_virtual(scenario())
    assert [(record.step, record.version, record.lag_steps) for record in records] == [(2, 1, 1), (4, 3, 0)]


@pytest.mark.parametrize(("seconds", "lag"), [(0.0, 0), (0.9, 0), (1.5, 1), (3.5, 3)])
def test_lag_counts_the_steps_trained_until_the_result_is_logged_and_is_0_for_one_on_time(seconds: float, lag: int) -> None:
    """Field report 26."""
    records: list[EvalRecord] = []
    run_virtual(train(make(takes(seconds), records, before=False, blocking=False, interval=5), 10))
    assert records[0].step == 5
    assert records[0].lag_steps == lag
    assert records[-1].lag_steps == 0  # nothing is trained after the last step


def test_points_are_evaluated_one_after_the_other_in_their_order() -> None:
    order: list[int] = []
    records: list[EvalRecord] = []
    run_virtual(train(make(takes(7, order), records, blocking=False, max_in_flight=100), 20))
    assert order == [*range(0, 21, 2)]
    assert brief(records) == [(step, "") for step in order]


def test_backpressure_waits_for_the_oldest_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    records: list[EvalRecord] = []
    evals = make(takes(100), records, before=False, blocking=False, max_in_flight=2, timeout=1000.0, wait_warning=30.0)
    with caplog.at_level(logging.WARNING, "asyncrl"):
        run_virtual(train(evals, 8))
    assert brief(records) == [(2, ""), (4, ""), (6, ""), (8, "")]
    assert [record.lag_steps for record in records] == [4, 4, 2, 0]
    assert (
        "the point of step 6 has waited 30 s for the evaluation of step 2 (version 2), the oldest of 2 that are pending"
        in caplog.messages
    )
    assert any(line.startswith("the end of the run has waited 30 s for the evaluation of step 6") for line in caplog.messages)


def test_skip_records_what_finds_no_room_as_busy_but_never_the_last_point() -> None:
    records: list[EvalRecord] = []
    evals = make(takes(100), records, before=False, blocking=False, max_in_flight=2, timeout=1000.0, overflow="skip")
    run_virtual(train(evals, 10))
    assert sorted(brief(records)) == [(2, ""), (4, ""), (6, "busy"), (8, "busy"), (10, "")]
    assert next(record for record in records if record.step == 6).detail["why"] == "2 were pending, the oldest that of step 2"


def test_a_record_that_cannot_be_written_costs_its_result_and_not_the_point() -> None:
    records: list[EvalRecord] = []

    def record(one: EvalRecord) -> None:
        if not one.skipped:
            raise TypeError("Object of type Tensor is not JSON serializable")
        records.append(one)

    evals = EvalDispatcher(
        interval=2, before=False, evaluate=takes(1), record=record, snapshots=Snapshots(), blocking=False, timeout=60
    )
    run_virtual(train(evals, 4))
    assert brief(records) == [(2, "crashed"), (4, "crashed")]
    assert "Tensor is not JSON serializable" in records[0].detail["why"]


def test_a_recorder_that_always_fails_does_not_end_the_run() -> None:
    def record(one: EvalRecord) -> None:
        raise OSError("no space left")

    evals = EvalDispatcher(interval=2, before=True, evaluate=takes(1), record=record, snapshots=Snapshots(), blocking=False)
    run_virtual(train(evals, 4))


def test_points_that_are_pending_when_the_run_ends_are_interrupted() -> None:
    async def scenario() -> None:
        running = asyncio.get_running_loop().create_task(train(evals, 100))
        await asyncio.sleep(6.5)  # steps 2 and 4 are pending, step 6 waits for room
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await evals.close()

    records: list[EvalRecord] = []
    evals = make(takes(100), records, before=False, blocking=False, timeout=1000.0)
    run_virtual(scenario())
    assert sorted(brief(records)) == [(2, "interrupted"), (4, "interrupted"), (6, "interrupted")]


def test_a_blocking_evaluation_that_is_interrupted_is_one_record_too() -> None:
    async def scenario() -> None:
        running = asyncio.get_running_loop().create_task(train(evals, 100))
        await asyncio.sleep(10)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await evals.close()

    records: list[EvalRecord] = []
    evals = make(takes(100), records, before=False, timeout=1000.0)
    run_virtual(scenario())
    assert brief(records) == [(2, "interrupted")]


def test_a_record_has_the_seconds_of_the_evaluation_alone() -> None:
    records: list[EvalRecord] = []
    run_virtual(train(make(takes(7), records, before=False, blocking=False), 4))
    assert [record.duration_seconds for record in records] == [pytest.approx(7), pytest.approx(7)]
    assert {record.export_seconds for record in records} == {0.0}

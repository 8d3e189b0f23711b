"""Each of these once hung; now each ends within a deadline in one typed error that names who is at fault."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from asyncrl import (
    FULL,
    NOTHING,
    Group,
    LoadView,
    Plugin,
    Prompt,
    PutOutcome,
    Sample,
    SampleDone,
    Sampler,
    SchedulerPlugin,
    Taken,
    hookimpl,
)
from asyncrl.errors import AsyncrlError, DeadlineExceeded, PluginFailed, RequestFailed, RunError, Stopped
from asyncrl.rollout.engine import GenerateRequest
from asyncrl.rollout.pool import EnginePool
from asyncrl.rollout.service import RolloutService
from asyncrl.simulation.clock import run_virtual
from asyncrl.simulation.engine import Plan, ScriptedEngine
from asyncrl_fifo import Fifo
from asyncrl_single_turn import SingleTurn
from simulated import assert_balanced, facts, host, same_length, simulate, trained_prompts


def service(run: Any, plugins: Any, **options: Any) -> RolloutService:
    pool = EnginePool([ScriptedEngine(script=same_length)], health_interval=0)
    return RolloutService(plugins, pool, run, **options)


class OneShort(SingleTurn):
    async def produce(self, prompt: Prompt, sampler: Sampler, done: SampleDone) -> Group:
        group = await super().produce(prompt, sampler, done)
        return Group(prompt, group.samples[1:])


class OneTooMany(SingleTurn):
    async def produce(self, prompt: Prompt, sampler: Sampler, done: SampleDone) -> Group:
        group = await super().produce(prompt, sampler, done)
        done(group.samples[0])
        return group


class ForgetsDone(SingleTurn):
    async def produce(self, prompt: Prompt, sampler: Sampler, done: SampleDone) -> Group:
        return await super().produce(prompt, sampler, lambda sample: None)


class ReturnsNothing(SingleTurn):
    async def produce(self, prompt: Prompt, sampler: Sampler, done: SampleDone) -> Any:
        await super().produce(prompt, sampler, done)


for kind in (OneShort, OneTooMany, ForgetsDone, ReturnsNothing):
    kind.produce = hookimpl(kind.produce)  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (OneShort, "made 1 samples where group_size is 2"),
        (OneTooMany, "called done for more samples than group_size"),
        (ForgetsDone, "called done for 0 samples where group_size is 2"),
        (ReturnsNothing, "answered with NoneType instead of this prompt's Group"),
    ],
)
def test_a_sample_count_that_is_not_group_size_ends_the_run(kind: type[Plugin], what: str) -> None:
    """Field report 13."""
    run = facts()
    with pytest.raises(PluginFailed, match=f"producer plugin '{kind.__name__}'.*{what}"):
        simulate(run, host(run, ("producer", kind, {})), limit=20.0)


def test_one_straggler_does_not_hold_the_batch() -> None:
    """Field report 14."""
    run = facts(max_concurrent_samples=16)

    def script(request: GenerateRequest, number: int) -> Plan:
        return Plan(fault="hang" if number == 0 else "", tokens=8)

    simulated = simulate(run, host(run), script=script, limit=60.0)
    assert len(simulated.batches) == run.steps
    assert 0 not in trained_prompts(simulated)


def test_a_straggler_that_is_needed_ends_at_the_request_deadline_and_is_generated_again() -> None:
    """Field report 14."""
    run = facts(steps=2)

    def script(request: GenerateRequest, number: int) -> Plan:
        return Plan(fault="hang" if number == 0 else "", tokens=8)

    simulated = simulate(run, host(run, ("scheduler", "lockstep", {})), script=script, request_timeout=100.0, limit=150.0)
    assert trained_prompts(simulated) == list(range(8))


def test_the_end_of_the_consumer_ends_a_producer_that_waits_on_a_full_buffer(caplog: pytest.LogCaptureFixture) -> None:
    """Field report 15."""
    run = facts()

    async def main() -> None:
        rollout = service(run, host(run), wait_warning=30.0)
        await rollout.start()
        await asyncio.sleep(100.0)
        assert rollout._gate.waiting
        issued = rollout.books()["issued"]
        await asyncio.sleep(100.0)
        assert rollout.books()["issued"] == issued
        await asyncio.wait_for(rollout.stop(), 1.0)
        assert_balanced(rollout.books())
        assert asyncio.all_tasks() == {asyncio.current_task()}
        with pytest.raises(Stopped):
            await rollout.take_batch(0, 1)
        with pytest.raises(Stopped):
            await rollout.pause_submission()

    with caplog.at_level(logging.WARNING, "asyncrl"):
        run_virtual(main(), limit=1000.0)
    assert "finished groups have waited 30 s for room in the buffer (8 groups, buffer plugin 'fifo'" in caplog.text


def test_the_end_of_the_producer_reaches_a_trainer_that_waits_on_an_empty_buffer() -> None:
    """Field report 16."""
    run = facts()

    class Dies(Plugin):
        @hookimpl
        async def produce(self, prompt: Prompt, sampler: Sampler, done: SampleDone) -> Group:
            await asyncio.sleep(5.0)
            raise RuntimeError("out of memory")

    async def main() -> None:
        rollout = service(run, host(run, ("producer", Dies, {})))
        await rollout.start()
        errors = []
        for ask in (rollout.take_batch(0, 1), rollout.take_batch(0, 1), rollout.pause_submission()):
            with pytest.raises(PluginFailed, match="out of memory") as caught:
                await ask
            errors.append(caught.value)
        assert errors[0] is errors[1] is errors[2]
        assert asyncio.get_running_loop().time() == 5.0
        await rollout.stop()

    run_virtual(main(), limit=10.0)


def test_a_producer_that_cancels_itself_does_not_leave_the_trainer_waiting() -> None:
    """Field report 16."""
    run = facts()

    class Leaves(Plugin):
        @hookimpl
        async def produce(self, prompt: Prompt, sampler: Sampler, done: SampleDone) -> Group:
            raise asyncio.CancelledError

    with pytest.raises(PluginFailed, match="cancelled itself"):
        simulate(run, host(run, ("producer", Leaves, {})), limit=10.0)


def test_a_slow_judge_is_cancelled_when_the_run_stops() -> None:
    """Field report 18."""
    run = facts()

    async def judge(prompt: Prompt, sample: Sample) -> float:
        await asyncio.sleep(3600.0)
        return 1.0

    async def main() -> None:
        rollout = service(run, host(run, reward=judge))
        await rollout.start()
        await asyncio.sleep(10.0)
        await rollout.stop()
        assert asyncio.get_running_loop().time() == 10.0
        assert_balanced(rollout.books())

    run_virtual(main())


def test_a_judge_that_ignores_its_cancellation_is_named_after_a_deadline() -> None:
    """Field report 18."""
    run = facts()

    async def judge(prompt: Prompt, sample: Sample) -> float:
        for _ in range(10):
            try:
                await asyncio.sleep(3600.0)
            except asyncio.CancelledError:
                continue
        return 1.0

    async def main() -> None:
        rollout = service(run, host(run, reward=judge), stop_timeout=10.0)
        await rollout.start()
        await asyncio.sleep(10.0)
        with pytest.raises(DeadlineExceeded, match=r"did not let go within 10 s.*of prompts 0, 1, 2, 3"):
            await rollout.stop()
        assert asyncio.get_running_loop().time() == 20.0

    run_virtual(main())


class GrantsNothing(SchedulerPlugin):
    @hookimpl
    def submission_quota(self, load: LoadView) -> int:
        return 0


class GivesNothing(Fifo):
    def buffer_take(self, version: int) -> Taken:
        return NOTHING

    buffer_take = hookimpl(buffer_take)


class AlwaysFull(Fifo):
    def buffer_put(self, group: Group) -> PutOutcome:
        return FULL

    buffer_put = hookimpl(buffer_put)


@pytest.mark.parametrize(
    ("slot", "kind", "what"),
    [
        (
            "scheduler",
            GrantsNothing,
            "scheduler plugin 'GrantsNothing'.*grants no group with nothing in flight and nothing buffered",
        ),
        ("buffer", GivesNothing, "buffer plugin 'GivesNothing'.*gives none of the 8 groups it holds"),
        ("buffer", AlwaysFull, r"buffer plugin 'AlwaysFull'.*gives none of the 0 groups it holds \(8 wait to enter\)"),
    ],
)
def test_a_trainer_to_whom_nothing_can_come_is_told_why(
    slot: str, kind: type[Plugin], what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Field report 4."""
    run = facts()
    with caplog.at_level(logging.WARNING, "asyncrl"), pytest.raises(DeadlineExceeded, match=f"batch of step 1.*{what}"):
        simulate(run, host(run, (slot, kind, {})), limit=100.0)
    assert "the trainer has waited 30 s for the batch of step 1: 0 of 4 groups are there" in caplog.text


def test_a_long_wait_with_work_in_flight_warns_but_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    run = facts(steps=1)
    with caplog.at_level(logging.WARNING, "asyncrl"):
        simulated = simulate(run, host(run), script=lambda request, number: Plan(tokens=100, per_token=1.0))
    assert len(simulated.batches) == 1
    assert caplog.text.count("the trainer has waited") == 3
    assert "more groups are in flight" in caplog.text


def test_the_loss_of_every_engine_ends_the_run() -> None:
    """Field report 12."""
    run = facts()

    def script(request: GenerateRequest, number: int) -> Plan:
        return Plan(fault="death" if number == 9 else "", tokens=8)

    with pytest.raises(AsyncrlError, match="no engine is alive"):
        simulate(run, host(run), script=script, limit=1000.0)


class RefusesAll:
    """An engine pool that refuses every request, as a server does a prompt that is too long."""

    engines = ()

    async def generate(self, request: GenerateRequest) -> Any:
        raise RequestFailed("the prompt has 401 tokens, the context is 256")


@pytest.mark.parametrize("on_unused", ["drop", "retry"])
def test_when_every_request_is_refused_the_run_ends_with_the_reason(on_unused: str) -> None:
    async def take() -> None:
        run = facts(batch_size=2)
        rollout = RolloutService(host(run), RefusesAll(), run, on_unused=on_unused)
        await rollout.start()
        try:
            await rollout.take_batch(0, 1)
        finally:
            await rollout.stop()

    with pytest.raises(RunError, match="the last 16 groups all failed, .*401 tokens"):
        run_virtual(take())

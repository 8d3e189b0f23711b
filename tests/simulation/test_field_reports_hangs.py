"""Field reports 11 to 16: each ends by a deadline, survived or in one typed error, and nothing is left running."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from asyncrl import (
    Group,
    LoadView,
    Plugin,
    Prompt,
    SampleDone,
    Sampler,
    SchedulerPlugin,
    hookimpl,
)
from asyncrl.errors import EnginesLost, PluginFailed, RunError, TrainerError
from asyncrl.rollout.engine import GenerateRequest
from asyncrl.simulation.engine import Plan
from asyncrl.simulation.script import EngineEvent
from asyncrl.training.interfaces import StepReport, TrainingBatch
from asyncrl_single_turn import SingleTurn
from simulated import (
    assert_balanced,
    facts,
    host,
    long_tail,
    same_length,
    trained_prompts,
)
from watched import WatchedRun, bounded, completed, failed, run_to_its_end

SCHEDULES = [("sample", "drop"), ("group", "drop"), ("paced", "wait"), ("lockstep", "drop")]


@pytest.mark.parametrize(("scheduler", "on_stale"), SCHEDULES)
def test_11_request_that_never_returns_is_given_up_and_generated_elsewhere(scheduler: str, on_stale: str) -> None:
    run = facts(steps=12)

    def script(request: GenerateRequest, number: int) -> Plan:
        return Plan(fault="hang", fault_after=3) if number % 11 == 5 else long_tail(1)(request, number)

    plugins = bounded(run, scheduler, 1, on_stale)
    ending = run_to_its_end(run, plugins, script=script, engines=2, request_timeout=30.0, deadline=1_000.0)
    assert set(completed(ending).service.books()["dropped"]) <= {"stale"}


@pytest.mark.parametrize(("scheduler", "on_stale"), SCHEDULES)
def test_11_engine_that_hangs_as_a_whole_is_left_out_until_it_is_back(scheduler: str, on_stale: str) -> None:
    run = facts(steps=12)
    hangs = [EngineEvent(0, 3.0, "hang"), EngineEvent(0, 200.0, "revive")]
    plugins = bounded(run, scheduler, 1, on_stale)
    options: dict[str, Any] = {"engines": 2, "request_timeout": 30.0, "train_seconds": lambda step: 20.0}
    ending = run_to_its_end(run, plugins, script=long_tail(1), faults=hangs, deadline=1_000.0, **options)
    asked = [engine.requests for engine in completed(ending).engines]
    assert asked[1] > asked[0] > 0


def test_11_when_no_request_ever_returns_the_run_ends_with_the_reason() -> None:
    run = facts()

    def script(request: GenerateRequest, number: int) -> Plan:
        return Plan(fault="hang")

    ending = run_to_its_end(run, host(run), script=script, request_timeout=30.0, deadline=10_000.0)
    failed(ending, RunError, "the last 32 groups all failed.*a request got no answer for 30 s")
    ending = run_to_its_end(run, host(run), faults=[EngineEvent(0, 3.5, "hang")], request_timeout=30.0, deadline=10_000.0)
    failed(ending, EnginesLost, "no engine is alive")


def test_12_engine_that_answers_500_in_the_middle_is_asked_again() -> None:
    run = facts(steps=12)

    def script(request: GenerateRequest, number: int) -> Plan:
        return Plan(tokens=20, fault="error" if number % 3 == 0 else "", fault_after=7)

    simulated = completed(run_to_its_end(run, host(run), script=script, max_attempts=8, deadline=1_000.0))
    assert simulated.service.books()["dropped"] == {}


@pytest.mark.parametrize(("scheduler", "on_stale"), SCHEDULES)
@pytest.mark.parametrize("engines", [1, 3])
def test_12_engine_that_closes_the_connection_is_left_out_until_it_is_back(scheduler: str, on_stale: str, engines: int) -> None:
    run = facts(steps=12, max_retries=0)
    dies = [
        EngineEvent(0, 2.5, "die"),
        EngineEvent(0, 40.0, "revive"),
        EngineEvent(0, 41.3, "die"),
        EngineEvent(0, 60.0, "revive"),
    ]
    plugins = bounded(run, scheduler, 1, on_stale)
    ending = run_to_its_end(run, plugins, script=long_tail(2), engines=engines, faults=dies, deadline=1_000.0)
    books = completed(ending).service.books()
    assert set(books["dropped"]) <= {"stale"}


def test_12_loss_of_every_engine_ends_the_run() -> None:
    run = facts()

    def script(request: GenerateRequest, number: int) -> Plan:
        return Plan(fault="death" if number % 9 == 8 else "", tokens=8)

    failed(run_to_its_end(run, host(run), script=script, engines=2, deadline=1_000.0), EnginesLost, "no engine is alive")


@pytest.mark.parametrize("on_unused", ["drop", "retry"])
def test_12_when_every_request_fails_the_run_ends_with_the_reason(on_unused: str) -> None:
    run = facts()

    def script(request: GenerateRequest, number: int) -> Plan:
        return Plan(fault="error", fault_after=5)

    ending = run_to_its_end(run, host(run), script=script, on_unused=on_unused, deadline=1_000.0)
    failed(ending, RunError, "the last 32 groups all failed.*engine-0.*500")


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


for _kind in (OneShort, OneTooMany, ForgetsDone, ReturnsNothing):
    _kind.produce = hookimpl(_kind.produce)  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (OneShort, "made 1 samples where group_size is 2"),
        (OneTooMany, "called done for more samples than group_size"),
        (ForgetsDone, "called done for 0 samples where group_size is 2"),
        (ReturnsNothing, "answered with NoneType instead of this prompt's Group"),
    ],
)
def test_13_sample_count_that_is_not_group_size_ends_the_run(kind: type[Plugin], what: str) -> None:
    run = facts()
    ending = run_to_its_end(run, host(run, ("producer", kind, {})), deadline=20.0)
    failed(ending, PluginFailed, f"producer plugin '{kind.__name__}'.*{what}")
    assert ending.run.batches == []


@pytest.mark.parametrize("scheduler", ["sample", "group"])
def test_14_straggler_does_not_hold_the_batch(scheduler: str) -> None:
    run = facts(max_concurrent_samples=16)

    def script(request: GenerateRequest, number: int) -> Plan:
        return Plan(fault="hang" if number == 0 else "", tokens=8)

    simulated = completed(run_to_its_end(run, host(run, ("scheduler", scheduler, {})), script=script, deadline=60.0))
    assert 0 not in trained_prompts(simulated)


@pytest.mark.parametrize(
    ("scheduler", "bound", "on_stale"), [("lockstep", 0, "drop"), ("paced", 0, "wait"), ("paced", 2, "wait")]
)
def test_14_straggler_that_is_needed_ends_at_the_request_deadline_and_is_generated_again(
    scheduler: str, bound: int, on_stale: str
) -> None:
    run = facts(steps=8)

    def script(request: GenerateRequest, number: int) -> Plan:
        return Plan(fault="hang" if number == 0 else "", tokens=8)

    plugins = bounded(run, scheduler, bound, on_stale)
    simulated = completed(run_to_its_end(run, plugins, script=script, request_timeout=100.0, deadline=150.0))
    assert sorted(trained_prompts(simulated)) == list(range(32))
    waits = [batch.step for batch in simulated.batches if 0 in batch.prompt_ids]
    assert waits == [1 + bound]
    assert simulated.measured().longest_wait[0] == 1 + bound


class TrainerDies(WatchedRun):
    """Its second step ends in an error, long after the buffer was full."""

    async def train(self, batch: TrainingBatch) -> StepReport:
        report = await super().train(batch)
        if batch.step == 2:
            assert self.service._gate.waiting
            raise TrainerError("out of memory")
        return report


@pytest.mark.parametrize("buffer", ["fifo", "priority"])
@pytest.mark.parametrize("scheduler", ["sample", "group"])
def test_15_end_of_the_trainer_ends_a_producer_that_waits_on_a_full_buffer(
    scheduler: str, buffer: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = facts()
    issued: list[int] = []

    def look(simulated: WatchedRun) -> None:
        if simulated.service._gate.waiting:
            issued.append(simulated.service.books()["issued"])

    plugins = host(run, ("scheduler", scheduler, {}), ("buffer", buffer, {}))
    options: dict[str, Any] = {"kind": TrainerDies, "train_seconds": lambda step: 200.0}
    with caplog.at_level(logging.WARNING, "asyncrl"):
        ending = run_to_its_end(run, plugins, script=same_length, look=look, deadline=1_000.0, **options)
    failed(ending, TrainerError, "out of memory")
    assert_balanced(ending.run.service.books())
    assert len(set(issued)) <= 2, "once a step"
    assert "finished groups have waited 30 s for room in the buffer (8 groups, buffer plugin" in caplog.text


class DiesLater(Plugin):
    @hookimpl
    async def produce(self, prompt: Prompt, sampler: Sampler, done: SampleDone) -> Group:
        await asyncio.sleep(5.0)
        raise MemoryError("no room")


class CancelsItself(Plugin):
    @hookimpl
    async def produce(self, prompt: Prompt, sampler: Sampler, done: SampleDone) -> Group:
        await asyncio.sleep(5.0)
        raise asyncio.CancelledError


class SchedulerDies(SchedulerPlugin):
    @hookimpl
    def submission_quota(self, load: LoadView) -> int:
        if load.groups_issued:
            raise MemoryError("no room")
        return 1


@pytest.mark.parametrize(
    ("slot", "kind", "what"),
    [
        ("producer", DiesLater, "failed in produce: MemoryError: no room"),
        ("producer", CancelsItself, "cancelled itself while it produced prompt"),
        ("scheduler", SchedulerDies, "failed in submission_quota: MemoryError: no room"),
    ],
)
def test_16_end_of_the_producer_reaches_a_trainer_that_waits_on_an_empty_buffer(slot: str, kind: type[Plugin], what: str) -> None:
    run = facts()
    waited: list[bool] = []

    def look(simulated: WatchedRun) -> None:
        waited.append(simulated.service._gate.trainer_waiting and not simulated.service._gate.store.size)

    ending = run_to_its_end(run, host(run, (slot, kind, {})), look=look, deadline=10.0)
    failed(ending, PluginFailed, f"{slot} plugin '{kind.__name__}'.*{what}")
    assert slot == "scheduler" or (all(waited) and ending.at == 5.0)

"""`paced` with a policy that waits: a bound on the age of every trained token, and nothing thrown away for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from asyncrl import Prompt, Sample
from asyncrl.rollout.engine import GenerateRequest
from asyncrl.rollout.pool import EnginePool
from asyncrl.rollout.service import RolloutService
from asyncrl.simulation.clock import run_virtual
from asyncrl.simulation.engine import Plan, ScriptedEngine
from asyncrl.simulation.run import SimulatedRun
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulated import assert_balanced, facts, host, long_tail, oldest_age, simulate, trained_prompts


def paced(run: Any, bound: int, *plugins: Any, on_stale: str = "wait") -> Any:
    policy = ("staleness", "max-gap", {"max_staleness": bound, "on_stale": on_stale})
    return host(run, ("scheduler", "paced", {}), policy, *plugins)


@settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 10_000),
    bound=st.integers(0, 4),
    batch_size=st.integers(1, 5),
    group_size=st.integers(1, 4),
    spare=st.integers(0, 40),
    slots=st.integers(1, 32),
    engines=st.integers(1, 3),
    capacity_factor=st.sampled_from([1.0, 2.0, 6.0]),
    publish_interval=st.integers(1, 3),
    publish_seconds=st.sampled_from([0.0, 0.7]),
    pause_mode=st.sampled_from(["retract", "in_place"]),
    train_seconds=st.sampled_from([0.0, 1.0, 20.0]),
)
def test_all_that_was_issued_is_trained_within_the_bound(
    seed: int,
    bound: int,
    batch_size: int,
    group_size: int,
    spare: int,
    slots: int,
    engines: int,
    capacity_factor: float,
    publish_interval: int,
    publish_seconds: float,
    pause_mode: Any,
    train_seconds: float,
) -> None:
    """Field reports 2, 4 and 6: so the lengths of trained groups are those of issued ones."""
    run = facts(
        batch_size=batch_size,
        group_size=group_size,
        max_concurrent_samples=group_size + spare,
        steps=10,
        publish_interval=publish_interval,
    )
    simulated = simulate(
        run,
        paced(run, bound, ("buffer", "fifo", {"capacity_factor": capacity_factor})),
        script=long_tail(seed),
        slots=slots,
        engines=engines,
        publish_seconds=publish_seconds,
        pause_mode=pause_mode,
        train_seconds=lambda step: train_seconds,
    )
    books = simulated.service.books()
    assert books["issued"] == books["trained"] == run.steps * run.batch_size
    assert books["dropped"] == {} and books["tokens"]["dropped"] == 0
    assert oldest_age(simulated) <= bound


def test_dropping_at_the_same_bound_throws_groups_away_and_trains_the_short_ones() -> None:
    """Field report 6, for comparison: `sample` drops, `paced` without waiting drops less, with waiting nothing."""
    run = facts(batch_size=8, max_concurrent_samples=32, steps=40)
    schedulers = {"sample": "drop", "paced without wait": "drop", "paced": "wait"}
    stale, lengths = {}, {}
    for name, on_stale in schedulers.items():
        policy = ("staleness", "max-gap", {"max_staleness": 1, "on_stale": on_stale})
        plugins = host(run, ("scheduler", name.split()[0], {}), policy)
        simulated = simulate(run, plugins, script=long_tail(5))
        assert oldest_age(simulated) <= 1
        books = simulated.service.books()
        stale[name] = books["dropped"].get("stale", 0)
        lengths[name] = books["tokens"]["trained"] / books["trained"]
    assert stale["sample"] > stale["paced without wait"] >= stale["paced"] == 0
    assert lengths["sample"] < lengths["paced"]


@pytest.mark.parametrize("seed", range(5))
def test_a_bound_of_zero_is_lockstep(seed: int) -> None:
    """Field report 4: the same prompts in the same batches at the same times."""
    run = facts(batch_size=3, steps=8, max_concurrent_samples=12)
    times: dict[str, list[float]] = {"lockstep": [], "paced": []}
    prompts = {}
    for name in times:
        plugins = paced(run, 0) if name == "paced" else host(run, ("scheduler", "lockstep", {}))

        def train_seconds(step: int, name: str = name) -> float:
            times[name].append(asyncio.get_running_loop().time())
            return 1.5

        simulated = simulate(run, plugins, script=long_tail(seed), train_seconds=train_seconds, publish_seconds=0.25)
        prompts[name] = [batch.prompt_ids.tolist() for batch in simulated.batches]
        assert oldest_age(simulated) == 0
    assert times["paced"] == times["lockstep"]
    assert prompts["paced"] == prompts["lockstep"]


def outstanding_at_most(most: int) -> Any:
    """Look all the time whether more groups are outstanding than could be trained in time."""

    async def look(simulated: SimulatedRun) -> None:
        while True:
            await asyncio.sleep(0.1)
            assert simulated.service._loop._load().groups_outstanding <= most

    return look


def test_a_stalled_trainer_finds_no_more_than_the_bound_allows_and_the_run_goes_on_as_before() -> None:
    run = facts(steps=30)
    started: list[float] = []

    def train_seconds(step: int) -> float:
        started.append(asyncio.get_running_loop().time())
        return 10_000.0 if step == 10 else 2.0

    simulated = simulate(
        run,
        paced(run, 2),
        script=long_tail(7),
        train_seconds=train_seconds,
        during=outstanding_at_most(3 * run.batch_size),
    )
    books = simulated.service.books()
    assert books["issued"] == books["trained"] and oldest_age(simulated) <= 2
    before = started[9] - started[0]
    assert started[29] - started[20] <= before * 1.5


def test_groups_of_a_dead_engine_are_waited_for_and_the_run_goes_on_when_it_is_back() -> None:
    run = facts(steps=20, max_retries=3)

    async def die_and_return(simulated: SimulatedRun) -> None:
        await asyncio.sleep(12.0)
        simulated.engines[0].die()
        await asyncio.sleep(15.0)
        simulated.engines[1].die()
        await asyncio.sleep(15.0)
        for engine in simulated.engines:
            engine.revive()
            engine.publish(simulated.version)
            engine.alive = True

    simulated = simulate(
        run,
        paced(run, 1),
        script=long_tail(3),
        engines=2,
        during=die_and_return,
        max_attempts=100,
        train_seconds=lambda step: 1.0,
    )
    books = simulated.service.books()
    assert books["issued"] == books["trained"] == run.steps * run.batch_size
    assert oldest_age(simulated) <= 1


@pytest.mark.parametrize("fault", ["error", "abort", "hang"])
@pytest.mark.parametrize("on_unused", ["drop", "retry"])
def test_groups_that_fail_free_the_places_that_were_kept_for_them(fault: Any, on_unused: str) -> None:
    """Field reports 11 and 12: the trainer does not wait for what will never come."""
    run = facts(steps=15, max_retries=1, on_unused=on_unused)

    def script(request: GenerateRequest, number: int) -> Plan:
        if request.affinity % 7 == 3:
            return Plan(tokens=40, fault=fault, fault_after=20)
        return long_tail(1)(request, number)

    simulated = simulate(run, paced(run, 1), script=script, request_timeout=30.0, max_attempts=2, on_unused=on_unused)
    trained = trained_prompts(simulated)
    assert len(trained) == run.steps * run.batch_size
    assert oldest_age(simulated) <= 1
    assert not [prompt_id for prompt_id in trained if prompt_id % 7 == 3]
    assert set(simulated.service.books()["dropped"]) <= {"request_failed", "aborted"}


def test_a_scheduler_that_admits_too_much_keeps_the_bound_and_loses_what_finds_no_place() -> None:
    run = facts(batch_size=2, max_concurrent_samples=40, steps=20)
    policy = ("staleness", "max-gap", {"max_staleness": 1, "on_stale": "wait"})
    simulated = simulate(run, host(run, ("scheduler", "sample", {}), policy), script=long_tail(2))
    assert oldest_age(simulated) <= 1
    assert simulated.service.books()["dropped"]["stale"] > 0


def test_filters_that_refuse_leave_no_place_empty() -> None:
    run = facts(steps=20, group_size=2)
    scored: set[int] = set()

    async def reward(prompt: Prompt, sample: Sample) -> float:
        first = prompt.prompt_id not in scored
        scored.add(prompt.prompt_id)
        return float(first or prompt.prompt_id % 3 == 0)

    policy = ("staleness", "max-gap", {"max_staleness": 1, "on_stale": "wait"})
    plugins = host(run, ("scheduler", "paced", {}), policy, ("filters", "reward-variance", {}), reward=reward)
    simulated = simulate(run, plugins, script=long_tail(9))
    books = simulated.service.books()
    assert len(trained_prompts(simulated)) == run.steps * run.batch_size
    assert set(books["dropped"]) == {"no_variance"}
    assert oldest_age(simulated) <= 1
    assert_balanced(books)


@pytest.mark.parametrize("version", [0, 1_000_000])
def test_a_resumed_run_is_paced_by_what_is_still_to_come_at_any_version(version: int) -> None:
    run = facts(steps=2_000_010, publish_interval=1)

    def service(seed: int) -> tuple[RolloutService, ScriptedEngine]:
        engine = ScriptedEngine(script=long_tail(seed))
        engine.publish(version)
        return RolloutService(paced(run, 2), EnginePool([engine], health_interval=0), run), engine

    async def train(rollout: RolloutService, engine: ScriptedEngine, first: int, steps: int) -> list[int]:
        for step in range(first, first + steps):
            batch, _ = await rollout.take_batch(step - 1, step)
            assert int((batch.version - batch.versions[batch.loss_mask]).max()) <= 2
            await asyncio.sleep(1.0)
            rollout.trained(step)
            engine.publish(step)
            rollout.on_published(step)
            assert rollout._loop._load().groups_outstanding <= 3 * run.batch_size
        return []

    async def main() -> None:
        first, engine = service(1)
        first.on_published(version)
        await first.start()
        await train(first, engine, version + 1, 6)
        await asyncio.sleep(3.0)
        state = first.state()
        await first.stop()
        second, engine = service(2)
        engine.publish(version + 6)
        second.restore(state)
        await second.start()
        await asyncio.sleep(500.0)
        assert second._loop._load().groups_outstanding <= 3 * run.batch_size
        await train(second, engine, version + 7, 6)
        assert second.books()["dropped"] == {}
        assert second.books()["trained"] == 12 * run.batch_size
        await second.stop()

    run_virtual(main(), limit=100_000.0)


def test_a_wait_says_that_places_are_kept_and_for_whom(caplog: pytest.LogCaptureFixture) -> None:
    run = facts(steps=3)

    def script(request: GenerateRequest, number: int) -> Plan:
        return Plan(tokens=1000 if request.affinity == 0 else 4, per_token=0.125)

    simulate(run, paced(run, 1), script=script)
    assert "places are kept for groups of version 0 or older, which would become too old" in caplog.text


def test_prompts_issued_again_under_pacing_are_trained_within_the_bound() -> None:
    run = facts(steps=20, on_unused="retry")

    seen: set[int] = set()

    def script(request: GenerateRequest, number: int) -> Plan:
        if request.affinity % 5 == 0 and request.affinity not in seen:
            seen.add(request.affinity)
            return Plan(tokens=30, fault="error", fault_after=9)
        return long_tail(4)(request, number)

    simulated = simulate(run, paced(run, 1), script=script, max_attempts=1, on_unused="retry")
    assert oldest_age(simulated) <= 1
    assert sorted(trained_prompts(simulated)) == sorted(set(trained_prompts(simulated)))
    assert simulated.service.books()["dropped"] == {}

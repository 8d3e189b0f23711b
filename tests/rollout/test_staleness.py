"""No trained token is older than the bound, and what is measured is what was trained."""

from __future__ import annotations

import asyncio

import pytest
from asyncrl import Plugin, Verdict, drop, hookimpl
from asyncrl.rollout.engine import GenerateRequest
from asyncrl.rollout.verdicts import KEEP
from asyncrl.samples import Group
from asyncrl.simulation.engine import Plan
from asyncrl.simulation.run import SimulatedRun
from simulated import assert_balanced, facts, host, long_tail, oldest_age, simulate, trained_prompts, values


def test_a_request_that_spans_a_publication_is_as_old_as_its_admission() -> None:
    """Field report 1."""
    run = facts(max_concurrent_samples=16, steps=10)

    def script(request: GenerateRequest, number: int) -> Plan:
        return Plan(tokens=24 if request.affinity == 4 else 8, per_token=0.125)

    # Prompt 4 is admitted at 0 s under version 0, published into at 2 s, and ends at 3 s.
    simulated = simulate(run, host(run), script=script)
    [batch] = [batch for batch in simulated.batches if 4 in batch.prompt_ids]
    index = batch.prompt_ids.tolist().index(4)
    sample = batch.groups.tolist().index(index)
    versions = batch.versions[batch.starts[sample] + batch.prompt_lengths[sample] : batch.starts[sample + 1]].tolist()
    assert versions == [0] * 16 + [1] * 8


@pytest.mark.parametrize("bound", [0, 1, 2, 3])
@pytest.mark.parametrize("scheduler", ["sample", "group", "lockstep"])
def test_no_trained_token_is_older_than_the_bound(bound: int, scheduler: str) -> None:
    """Field report 2."""
    run = facts(max_concurrent_samples=24, steps=8)
    plugins = host(run, ("staleness", "max-gap", {"max_staleness": bound}), ("scheduler", scheduler, {}))
    simulated = simulate(run, plugins, script=long_tail(bound), publish_seconds=0.25)
    assert len(simulated.batches) == run.steps
    assert oldest_age(simulated) <= bound
    assert_balanced(simulated.service.books())


class JudgesOnce(Plugin):
    """Keeps a group the first time it is asked and refuses it the second time."""

    asked: dict[int, int]

    @hookimpl
    def judge_staleness(self, group: Group, version: int) -> Verdict:
        counts = self.__dict__.setdefault("asked", {})
        counts[group.prompt_id] = counts.get(group.prompt_id, 0) + 1
        return drop("late") if group.prompt_id < 3 and counts[group.prompt_id] == 2 else KEEP


def test_the_verdict_is_asked_again_when_the_batch_is_complete_and_refused_groups_are_replaced() -> None:
    """Field report 2."""
    run = facts(steps=1)
    simulated = simulate(run, host(run, ("staleness", JudgesOnce, {})))
    trained = trained_prompts(simulated)
    assert len(trained) == run.batch_size and not {0, 1, 2} & set(trained)
    assert simulated.service.books()["dropped"] == {"late": 3}


def test_consumed_staleness_counts_only_what_was_trained() -> None:
    """Field report 3."""
    run = facts(max_concurrent_samples=24, steps=8)
    plugins = host(run, ("staleness", "max-gap", {"max_staleness": 1}))
    simulated = simulate(run, plugins, script=long_tail(3))
    assert simulated.service.books()["dropped"]["stale"] > 0
    deltas = simulated.service.metrics.drain()
    count, total, low, high = deltas["rollout/consumed_staleness"][""]
    assert count == run.steps * run.batch_size
    assert 0 <= low <= high <= 1
    assert simulated.service.books()["staleness"] == {"mean": total / count, "max": high}


def test_a_bound_of_zero_gives_the_batches_of_a_synchronous_run() -> None:
    """Field report 4."""
    run = facts()
    bounded = host(run, ("scheduler", "lockstep", {}), ("staleness", "max-gap", {"max_staleness": 0}))
    synchronous = host(run, ("scheduler", "lockstep", {}))
    simulated = simulate(run, bounded, script=long_tail(1))
    assert trained_prompts(simulated) == trained_prompts(simulate(run, synchronous, script=long_tail(1)))
    assert simulated.service.books()["dropped"] == {}


@pytest.mark.parametrize("on_stale", ["drop", "retry"])
def test_a_bound_of_zero_makes_progress_under_an_asynchronous_scheduler(on_stale: str) -> None:
    """Field report 4."""
    run = facts(max_concurrent_samples=16)
    plugins = host(run, ("staleness", "max-gap", {"max_staleness": 0, "on_stale": on_stale}))
    simulated = simulate(run, plugins, script=long_tail(2))
    assert len(simulated.batches) == run.steps
    assert oldest_age(simulated) == 0


def test_on_policy_means_the_version_that_is_improved() -> None:
    """Field report 5."""
    run = facts(publish_interval=2)
    simulated = simulate(run, host(run, ("scheduler", "lockstep", {})), script=long_tail(4))
    assert [batch.version for batch in simulated.batches] == [0, 0, 1, 1, 2, 2]
    for batch in simulated.batches:
        assert set(batch.versions[batch.loss_mask].tolist()) == {batch.version}


def test_a_prompt_that_always_exceeds_the_bound_ends_with_a_reason() -> None:
    """Field report 6."""
    run = facts(max_concurrent_samples=16, steps=40, max_retries=2)
    asked: list[int] = []
    fates: dict[int, str] = {}

    class Watch(Plugin):
        @hookimpl
        def on_group_ended(self, prompt_id: int, fate: str, tokens: int) -> None:
            assert prompt_id not in fates
            fates[prompt_id] = fate

    def script(request: GenerateRequest, number: int) -> Plan:
        asked.append(request.affinity)
        return Plan(tokens=64 if request.affinity == 3 else 4, per_token=0.125)

    plugins = host(run, ("staleness", "max-gap", {"max_staleness": 1, "on_stale": "retry"}), ("observers", Watch, {}))
    simulated = simulate(run, plugins, script=script)
    assert asked.count(3) == (1 + run.max_retries) * run.group_size
    assert fates[3] == "stale"
    assert 3 not in trained_prompts(simulated)


def test_the_staleness_of_the_buffer_is_that_of_the_groups_it_holds() -> None:
    run = facts(max_concurrent_samples=16, steps=3)

    async def look(simulated: SimulatedRun) -> None:
        for _ in range(30):
            await asyncio.sleep(0.4)
            gate = simulated.service._gate
            held = gate.store.state().groups
            count, total, low, high = gate.store.ages(simulated.version)
            ages = [group.staleness(simulated.version) for group in held]
            assert (count, total) == (len(ages), sum(ages))
            if ages:
                assert (low, high) == (min(ages), max(ages))

    simulated = simulate(run, host(run), script=long_tail(5), during=look)
    assert values(simulated.service.drain_metrics(), "rollout/buffer_size")

"""`lockstep` is synchronous reinforcement learning: which prompts a batch holds never depends on timing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from asyncrl import Prompt, Sample
from asyncrl.host import Host
from asyncrl.rollout.engine import GenerateRequest
from asyncrl.simulation.engine import Plan
from asyncrl.simulation.run import SimulatedRun
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import assert_balanced, facts, host, long_tail, simulate, trained_prompts


class Alternating:
    """The first sample of a prompt that is scored is wrong, the next one right; prompts divisible by 3 are always right."""

    def __init__(self) -> None:
        self.scored: dict[int, int] = {}

    async def __call__(self, prompt: Prompt, sample: Sample) -> float:
        count = self.scored[prompt.prompt_id] = self.scored.get(prompt.prompt_id, 0) + 1
        return 1.0 if prompt.prompt_id % 3 == 0 else float(count % 2)


def lockstep(run: Any, *plugins: Any) -> Host:
    return host(run, ("scheduler", "lockstep", {}), *plugins, reward=Alternating())


def synchronous_batches(steps: int, batch_size: int) -> list[int]:
    """What a plain loop trains: the first prompts of the stream that pass the filter."""
    return [prompt_id for prompt_id in range(10 * steps * batch_size) if prompt_id % 3][: steps * batch_size]


@settings(max_examples=25, derandomize=True, deadline=None)
@given(seed=st.integers(0, 1000), slots=st.integers(1, 12), cap=st.integers(2, 16), engines=st.integers(1, 3))
def test_batches_are_those_of_a_synchronous_run_at_any_timing(seed: int, slots: int, cap: int, engines: int) -> None:
    run = facts(max_concurrent_samples=cap)
    plugins = lockstep(run, ("filters", "reward-variance", {}))
    simulated = simulate(run, plugins, script=long_tail(seed), slots=slots, engines=engines)
    assert trained_prompts(simulated) == synchronous_batches(run.steps, run.batch_size)
    for batch in simulated.batches:
        assert set(batch.versions[batch.loss_mask].tolist()) == {batch.version}
    assert_balanced(simulated.service.books())


def test_nothing_is_generated_while_the_trainer_trains() -> None:
    run = facts(steps=3)
    looks: list[tuple[bool, int]] = []

    async def look(simulated: SimulatedRun) -> None:
        for _ in range(1000):
            await asyncio.sleep(0.3)
            looks.append((simulated.service._gate.trainer_waiting, simulated.engines[0].in_flight))

    simulated = simulate(run, lockstep(run), during=look, train_seconds=lambda step: 5.0)
    assert {in_flight for waiting, in_flight in looks if not waiting} == {0}
    assert (True, 8) in looks
    assert simulated.service.books()["issued"] == 12


def test_a_refused_group_is_replaced_under_the_same_version() -> None:
    run = facts(steps=2)
    simulated = simulate(run, lockstep(run, ("filters", "reward-variance", {})))
    assert [batch.prompt_ids.tolist() for batch in simulated.batches] == [[1, 2, 4, 5], [7, 8, 10, 11]]
    assert [set(batch.versions[batch.loss_mask].tolist()) for batch in simulated.batches] == [{0}, {1}]


@pytest.mark.parametrize("on_unused", ["drop", "retry"])
def test_it_goes_on_when_samples_fail(on_unused: str) -> None:
    run = facts(max_retries=1)

    def script(request: GenerateRequest, number: int) -> Plan:
        return Plan(tokens=8, fault="abort" if request.affinity % 4 == 1 else "", fault_after=4)

    simulated = simulate(run, lockstep(run), script=script, on_unused=on_unused)
    assert trained_prompts(simulated) == [prompt_id for prompt_id in range(40) if prompt_id % 4 != 1][:24]

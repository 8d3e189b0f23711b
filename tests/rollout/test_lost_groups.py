"""The fate of groups that cannot be trained; more of it is in simulation/test_field_reports_groups.py."""

from __future__ import annotations

import pytest
from asyncrl import Prompt, Sample
from asyncrl.rollout.engine import GenerateRequest
from asyncrl.simulation.engine import Plan
from simulated import facts, host, simulate, trained_prompts


@pytest.mark.parametrize(("on_unused", "tries", "fate"), [("drop", 1, {"aborted": 1}), ("retry", 3, {"aborted": 1})])
def test_an_aborted_group_is_dropped_or_issued_again_as_on_unused_says(on_unused: str, tries: int, fate: dict[str, int]) -> None:
    run = facts(batch_size=1, group_size=2, max_concurrent_samples=2, steps=9, max_retries=2)
    asked: list[int] = []

    def script(request: GenerateRequest, number: int) -> Plan:
        asked.append(request.affinity)
        return Plan(tokens=8, fault="abort" if request.affinity == 0 else "", fault_after=4)

    simulated = simulate(run, host(run), script=script, on_unused=on_unused)
    assert asked.count(0) == tries * run.group_size * (1 + run.max_retries)
    assert simulated.service.books()["dropped"] == fate
    assert trained_prompts(simulated) == list(range(1, 10))


def test_a_reward_that_is_no_number_is_a_failed_sample() -> None:
    run = facts(max_concurrent_samples=16, max_retries=0)

    async def reward(prompt: Prompt, sample: Sample) -> float:
        return float("nan") if prompt.prompt_id == 0 else 1.0

    simulated = simulate(run, host(run, reward=reward))
    assert simulated.service.books()["dropped"] == {"reward_error": 1}

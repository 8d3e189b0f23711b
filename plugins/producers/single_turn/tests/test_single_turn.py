"""`single-turn` makes a scored sample of each completion."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from asyncrl import Completion, Group, PluginOptions, Prompt, RunFacts, Sample, Score, Status
from asyncrl.rollout.engine import GenerateRequest
from asyncrl.rollout.group_sampler import GroupSampler
from asyncrl.rollout.metrics import RolloutMetrics
from asyncrl.rollout.pool import EnginePool
from asyncrl.samples import SamplingParams
from asyncrl.simulation.clock import run_virtual
from asyncrl.simulation.engine import Plan, ScriptedEngine
from asyncrl_single_turn import SingleTurn, unscored

PROMPT = Prompt(7, np.arange(3, dtype=np.int32))


def produced(script: object, group_size: int = 3) -> tuple[Group, list[Sample], list[GenerateRequest]]:
    requests: list[GenerateRequest] = []

    def plan(request: GenerateRequest, number: int) -> Plan:
        requests.append(request)
        return script(number)  # type: ignore[operator]

    async def score(prompt: Prompt, sample: Sample) -> Score:
        await asyncio.sleep(0.5)
        return Score(float(len(sample.token_ids)))

    async def main() -> tuple[Group, list[Sample], list[GenerateRequest]]:
        pool = EnginePool([ScriptedEngine(script=plan)], health_interval=0)
        sampler = GroupSampler(
            pool, score, group_size=group_size, params=SamplingParams(64), max_retries=0, metrics=RolloutMetrics("rollout")
        )
        ended: list[Sample] = []
        facts = RunFacts(batch_size=1, group_size=group_size, max_concurrent_samples=8, steps=1)
        group = await SingleTurn(PluginOptions(), facts).produce(PROMPT, sampler, ended.append)
        return group, ended, requests

    return run_virtual(main())


def test_a_group_holds_group_size_scored_samples_of_the_prompt() -> None:
    group, _, requests = produced(lambda number: Plan(tokens=4 + number))
    assert group.prompt is PROMPT
    assert [sample.reward for sample in group.samples] == [4.0, 5.0, 6.0]
    assert all(sample.loss_mask.all() and sample.status is Status.COMPLETED for sample in group.samples)
    assert {request.affinity for request in requests} == {7}
    assert all(request.token_ids is PROMPT.token_ids for request in requests)


def test_each_sample_is_reported_once_in_the_order_in_which_they_end() -> None:
    _, ended, _ = produced(lambda number: Plan(tokens=[9, 3, 6][number]))
    assert [len(sample.token_ids) for sample in ended] == [3, 6, 9]


@pytest.mark.parametrize(
    ("finish_reason", "status"), [("stop", Status.COMPLETED), ("length", Status.TRUNCATED), ("abort", Status.ABORTED)]
)
def test_the_status_is_how_generation_ended(finish_reason: str, status: Status) -> None:
    tokens, logprobs = np.ones(2, np.int32), np.zeros(2, np.float32)
    sample = unscored(Completion(tokens, logprobs, ((1, 2),), finish_reason, 1))
    assert (sample.status, sample.spans, bool(sample.reason)) == (status, ((1, 2),), status is Status.ABORTED)


def test_an_aborted_completion_is_not_scored() -> None:
    group, _, _ = produced(lambda number: Plan(fault="abort" if number == 1 else "", fault_after=2))
    assert [sample.status for sample in group.samples] == [Status.COMPLETED, Status.ABORTED, Status.COMPLETED]
    assert group.samples[1].reward == 0.0
    assert group.aborted == "aborted: an engine gave it up"

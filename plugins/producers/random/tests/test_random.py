"""Lengths are those that were drawn, everything drawn is drawn again, and what can't be is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from asyncrl import Group, OptionError, Prompt, RunFacts, Status
from asyncrl.rollout.engine import GenerateRequest
from asyncrl.rollout.pool import EnginePool
from asyncrl.samples import SamplingParams
from asyncrl.simulation.clock import run_virtual
from asyncrl.simulation.engine import ScriptedEngine
from asyncrl.simulation.lengths import ConstantLengths, LognormalLengths
from asyncrl.simulation.script import LengthScript, Plan
from asyncrl.testing.models import default_model
from asyncrl.testing.sampling import make_sampler
from asyncrl_random import RandomProducer, RandomProducerOptions, RandomTask, RandomTaskOptions

RUN = RunFacts(batch_size=4, group_size=8, max_concurrent_samples=64, steps=4, seed=3, max_new_tokens=40)
PROMPT = Prompt(7, np.arange(3, dtype=np.int32))


SCRIPT = LengthScript(ConstantLengths(1), per_token=0.1)


def produced(
    script: Any = SCRIPT, params: SamplingParams | None = None, **options: Any
) -> tuple[RandomProducer, Group, list[GenerateRequest]]:
    requests: list[GenerateRequest] = []

    def listening(request: GenerateRequest, number: int) -> Plan:
        requests.append(request)
        return script(request, number)

    async def main() -> tuple[RandomProducer, Group, list[GenerateRequest]]:
        producer = RandomProducer(RandomProducerOptions(**options), RUN)
        sampler = make_sampler(EnginePool([ScriptedEngine(script=listening)], health_interval=0), RUN)
        sampler.params = params or sampler.params
        return producer, await producer.produce(PROMPT, sampler, lambda sample: None), requests

    return run_virtual(main())


def lengths(group: Group) -> list[int]:
    return [len(sample.token_ids) for sample in group.samples]


def test_each_completion_has_the_length_that_was_drawn_whatever_the_model_would_write() -> None:
    producer, group, requests = produced(mean=10)
    law = LognormalLengths(10, 1.0, 41 / 10, RUN.seed)
    assert lengths(group) == [min(40, law.sample(7, index)[0]) for index in range(8)]
    assert len(set(lengths(group))) > 3
    assert [request.params.max_new_tokens for request in requests] == lengths(group)
    assert all(request.params.ignore_eos and request.params.temperature == RUN.temperature for request in requests)
    (recorded,) = [delta[""] for name, delta in producer.metrics.drain().items() if name.endswith("/target_tokens")]
    assert recorded[:2] == [8, sum(lengths(group))]


def test_the_same_prompt_gets_the_same_lengths_again() -> None:
    assert lengths(produced()[1]) == lengths(produced()[1])
    assert lengths(produced(sigma=0)[1]) == [10] * 8


def test_a_length_that_is_cut_is_truncated_and_one_that_is_reached_is_complete() -> None:
    _, group, _ = produced(mean=30, max_tokens=31, min_tokens=4)
    assert {sample.status for sample in group.samples} == {Status.COMPLETED, Status.TRUNCATED}
    assert all(4 <= count <= 31 for count in lengths(group))
    for sample in group.samples:
        assert sample.status is Status.COMPLETED or len(sample.token_ids) == 31


def test_an_evaluation_of_fewer_tokens_gets_fewer() -> None:
    assert max(lengths(produced(params=SamplingParams(5))[1])) == 5


def test_an_engine_that_ends_early_is_counted() -> None:
    producer, group, _ = produced(lambda request, number: Plan(tokens=2), mean=20, min_tokens=3)
    assert all(sample.status is not Status.ABORTED for sample in group.samples)
    assert [delta[""] for name, delta in producer.metrics.drain().items() if name.endswith("/early")] == [8]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 41}, "producer.max_tokens = 41 is more than max_new_tokens = 40"),
        ({"mean": 50}, "producer.mean = 50 does not lie in 1 to 40"),
        ({"mean": 0.5}, "producer.mean = 0.5 does not lie in 1 to 40"),
        ({"min_tokens": 20, "max_tokens": 10}, "producer.min_tokens = 20 does not lie in 1 to 10"),
    ],
)
def test_lengths_that_can_not_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        RandomProducer(RandomProducerOptions(**options), RUN).check_run(RUN)


# The task -------------------------------------------------------------------------------------------------------------------


def opened(seed: int = 3, **options: Any) -> RandomTask:
    task = RandomTask(RandomTaskOptions(seed=seed, **options), RUN)
    task.task_open(default_model())
    return task


def test_prompts_are_random_within_bounds_and_the_same_after_a_restart() -> None:
    prompts = [opened(mean=8, min_tokens=5, max_tokens=20).train_prompt(position) for position in range(200)]
    again = opened(mean=8, min_tokens=5, max_tokens=20).train_prompt(150)
    assert again.token_ids.tolist() == prompts[150].token_ids.tolist()
    assert {len(prompt.token_ids) for prompt in prompts} <= set(range(5, 21))
    assert len({prompt.token_ids.tobytes() for prompt in prompts}) == 200
    other = opened(seed=4, mean=8, min_tokens=5, max_tokens=20).train_prompt(150)
    assert other.token_ids.tolist() != again.token_ids.tolist()


def test_held_out_prompts_are_none_of_the_training_s() -> None:
    (held_out,) = opened(num_eval=20).eval_sets()
    assert [prompt.prompt_id for prompt in held_out.prompts] == list(range(20))
    assert held_out.params.max_new_tokens == RUN.max_new_tokens
    training = {opened().train_prompt(position).token_ids.tobytes() for position in range(100)}
    assert not training & {prompt.token_ids.tobytes() for prompt in held_out.prompts}
    assert opened().eval_sets() == ()


def test_rewards_are_drawn_by_the_completion() -> None:
    async def scores(task: RandomTask) -> list[float]:
        return [(await task.score_sample(PROMPT, sample)).reward for sample in group.samples]

    _, group, _ = produced(mean=10)
    for rate, possible in ((0.0, {0.0}), (1.0, {1.0}), (0.5, {0.0, 1.0})):
        task = opened(success_rate=rate)
        assert set(asyncio.run(scores(task))) <= possible
        assert asyncio.run(scores(task)) == asyncio.run(scores(task))


def test_a_prompt_and_a_completion_that_the_context_has_no_room_for_are_refused() -> None:
    with pytest.raises(OptionError, match="are more than the model's context of"):
        opened(mean=100_000)
    with pytest.raises(OptionError, match=r"task\.min_tokens = 300 is more than the 256 tokens"):
        RandomTask(RandomTaskOptions(min_tokens=300), RUN).check_run(RUN)


def test_it_has_no_model_of_its_own(tmp_path: Any) -> None:
    with pytest.raises(OptionError, match="no model of its own"):
        opened().task_model(tmp_path)

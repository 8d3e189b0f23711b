"""A group is made of exactly its samples, and a failure stays where it belongs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np
import pytest
from asyncrl import Completion, Group, Prompt, Sample, Score, Status
from asyncrl.errors import EnginesLost, PluginFailed, RequestFailed
from asyncrl.rollout.engine import GenerateRequest
from asyncrl.rollout.group_sampler import GroupSampler
from asyncrl.rollout.metrics import RolloutMetrics
from asyncrl.rollout.pool import EnginePool
from asyncrl.samples import SamplingParams, full_mask
from asyncrl.simulation.clock import run_virtual
from asyncrl.simulation.engine import ScriptedEngine

PROMPT = Prompt(0, np.zeros(1, np.int32))


def sample(status: Status = Status.COMPLETED, tokens: int = 3, reason: str = "") -> Sample:
    return Sample(
        np.zeros(tokens, np.int32), np.zeros(tokens, np.float32), full_mask(tokens), ((0, tokens),), status, 0.0, reason
    )


async def right(prompt: Prompt, sample: Sample) -> Score:
    return Score(1.0)


class World:
    def __init__(self, score: Callable[..., Awaitable[object]] = right, *, group_size: int = 4, max_retries: int = 2) -> None:
        self.metrics = RolloutMetrics("rollout")
        self.discarded: list[tuple[int, str]] = []
        self.done: list[Sample] = []
        self.sampler = GroupSampler(
            EnginePool([ScriptedEngine()], health_interval=0),
            score,
            group_size=group_size,
            params=SamplingParams(8),
            max_retries=max_retries,
            metrics=self.metrics,
            discarded=lambda tokens, reason: self.discarded.append((tokens, reason)),
        )

    async def group(self, one: Callable[[Prompt], Awaitable[Sample]]) -> Group:
        return await self.sampler.group(PROMPT, one, self.done.append)


def test_samples_run_at_once_and_keep_their_places() -> None:
    world = World()
    order = iter([3.0, 1.0, 2.0, 4.0])

    async def one(prompt: Prompt) -> Sample:
        seconds = next(order)
        await asyncio.sleep(seconds)
        return sample(tokens=int(seconds))

    async def main() -> None:
        group = await world.group(one)
        assert asyncio.get_running_loop().time() == 4.0
        assert [len(each.token_ids) for each in group.samples] == [3, 1, 2, 4]
        assert [len(each.token_ids) for each in world.done] == [1, 2, 3, 4]

    run_virtual(main())


def test_a_request_that_failed_is_tried_again_and_then_a_failed_sample() -> None:
    """Field report 9."""
    world = World(group_size=2, max_retries=2)
    calls = 0

    async def one(prompt: Prompt) -> Sample:
        nonlocal calls
        calls += 1
        if calls == 1:
            return sample()
        raise RequestFailed("a request failed 4 times, at last with: connection lost")

    group = run_virtual(world.group(one))
    assert calls == 1 + 3
    assert [each.status for each in group.samples] == [Status.COMPLETED, Status.FAILED]
    assert group.aborted.startswith("request_failed: a request failed 4 times")
    assert len(world.done) == 2
    assert world.metrics.drain()["rollout/sample_failures"] == {"request_failed": 3}


def test_tokens_that_are_thrown_away_are_reported() -> None:
    world = World(group_size=1)
    answers = iter([sample(Status.ABORTED, 5, "aborted: by the engine"), sample()])

    async def one(prompt: Prompt) -> Sample:
        return next(answers)

    run_virtual(world.group(one))
    assert world.discarded == [(5, "aborted")]


@pytest.mark.parametrize("error", [KeyError("bug"), EnginesLost("no engine is alive")])
def test_any_other_error_cancels_the_siblings_and_is_raised(error: Exception) -> None:
    """Field report 10."""
    world = World()
    cancelled = 0
    calls = 0

    async def one(prompt: Prompt) -> Sample:
        nonlocal cancelled, calls
        calls += 1
        if calls == 3:
            await asyncio.sleep(1.0)
            raise error
        try:
            await asyncio.sleep(3600.0)
        except asyncio.CancelledError:
            cancelled += 1
            raise
        return sample()

    async def main() -> None:
        with pytest.raises(type(error)) as caught:
            await world.group(one)
        assert caught.value is error
        assert asyncio.get_running_loop().time() == 1.0
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtual(main())
    assert cancelled == 3
    assert world.done == []


def test_a_cancelled_group_leaves_nothing_running() -> None:
    world = World()

    async def one(prompt: Prompt) -> Sample:
        await asyncio.sleep(3600.0)
        return sample()

    async def main() -> None:
        task = asyncio.ensure_future(world.group(one))
        await asyncio.sleep(1.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtual(main())


def test_a_failure_that_scoring_counted_itself_leaves_the_sample_trainable() -> None:
    async def killed(prompt: Prompt, sample: Sample) -> Score:
        return Score(0.0, "killed: past its deadline")

    world = World(killed)
    scored = run_virtual(world.sampler.score(PROMPT, sample()))
    assert scored.usable and scored.reward == 0.0
    assert scored.reason == "killed: past its deadline"
    assert world.metrics.drain()["rollout/score_failures"] == {"killed": 1}


def test_the_cause_inside_a_plugin_failure_is_the_rewards_own() -> None:
    """Field report 10."""

    async def wrapped(prompt: Prompt, sample: Sample) -> Score:
        raise PluginFailed("task plugin 'x' failed in score_sample") from ValueError("not a number")

    scored = run_virtual(World(wrapped).sampler.score(PROMPT, sample()))
    assert scored.status is Status.FAILED
    assert scored.reason == "reward_error: ValueError: not a number"


def test_a_score_of_the_wrong_type_ends_the_run() -> None:
    async def number(prompt: Prompt, sample: Sample) -> float:
        return 1.0

    with pytest.raises(PluginFailed, match="answered score_sample with 1.0; right is a Score"):
        run_virtual(World(number).sampler.score(PROMPT, sample()))


def test_the_loss_of_every_engine_while_scoring_is_not_a_wrong_answer() -> None:
    async def judge(prompt: Prompt, sample: Sample) -> Score:
        raise EnginesLost("no engine is alive")

    with pytest.raises(EnginesLost):
        run_virtual(World(judge).sampler.score(PROMPT, sample()))


class Seeds:
    """Engines that write down which seed each request carries."""

    def __init__(self) -> None:
        self.engine = ScriptedEngine()
        self.engines = (self.engine,)
        self.seen: list[int] = []

    async def generate(self, request: GenerateRequest) -> Completion:
        self.seen.append(request.seed)
        return await self.engine.generate(request)


def seeds_of(*prompt_ids: int, seed: int = 0, turns: int = 2, failures: int = 0) -> dict[int, list[int]]:
    """The seeds of the requests of each prompt; its first sample fails `failures` times."""
    found: dict[int, list[int]] = {}

    async def main() -> None:
        for prompt_id in prompt_ids:
            engines = Seeds()
            sampler = GroupSampler(
                engines,
                right,
                group_size=2,
                params=SamplingParams(8),
                max_retries=3,
                metrics=RolloutMetrics("rollout"),
                seed=seed,
            )
            left = failures

            async def one(prompt: Prompt, sampler: GroupSampler = sampler) -> Sample:
                nonlocal left
                for _ in range(turns):
                    await sampler.generate(prompt, prompt.token_ids)
                left -= 1
                return sample() if left < 0 else sample(Status.FAILED, reason="lost")

            await sampler.group(Prompt(prompt_id, np.zeros(1, np.int32)), one, lambda sample: None)
            found[prompt_id] = engines.seen

    run_virtual(main())
    return found


def test_every_request_carries_a_seed_of_its_own_that_what_came_before_does_not_change() -> None:
    first = seeds_of(0, 1, 2)
    assert seeds_of(2, 1) == {2: first[2], 1: first[1]}
    every = [seed for seeds in first.values() for seed in seeds]
    assert len(every) == 3 * 2 * 2 == len(set(every))
    assert all(0 <= seed < 2**53 for seed in every)
    assert not set(every) & set(seeds_of(0, 1, 2, seed=1)[0])


def test_a_sample_that_is_tried_again_has_another_seed() -> None:
    seeds = seeds_of(5, turns=1, failures=1)[5]
    assert len(seeds) == 3 == len(set(seeds))
    assert set(seeds_of(5, turns=1)[5]) < set(seeds)

"""The shared backend measures the rollout engines as they are."""

from __future__ import annotations

import numpy as np
from asyncrl import (
    Checkpoint,
    Completion,
    EvalSample,
    EvalSet,
    Group,
    Prompt,
    RunFacts,
    Sample,
    SamplingParams,
    Score,
    Status,
    full_mask,
)
from asyncrl.authoring import PluginOptions
from asyncrl.evaluation.sets import RunEvalSets
from asyncrl.rollout.group_sampler import GroupSampler
from asyncrl.rollout.metrics import RolloutMetrics
from asyncrl_shared import Shared

FACTS = RunFacts(batch_size=2, group_size=2, max_concurrent_samples=4, steps=1)


class Echo:
    """Engines at version 7 that answer each prompt with its own first token."""

    def __init__(self) -> None:
        self.engines = ()
        self.asked: list[SamplingParams] = []

    async def generate(self, request) -> Completion:
        self.asked.append(request.params)
        return Completion(request.token_ids[:1], np.zeros(1, np.float32), ((7, 1),), "stop", 7)


async def produce(prompt: Prompt, sampler, done) -> Group:
    async def one(prompt: Prompt) -> Sample:
        made = await sampler.generate(prompt, prompt.token_ids)
        sample = Sample(made.token_ids, made.logprobs, full_mask(len(made.token_ids)), made.spans, Status.COMPLETED)
        return await sampler.score(prompt, sample)

    return await sampler.group(prompt, one, done)


async def score(prompt: Prompt, sample: Sample) -> Score:
    return Score(float(sample.token_ids[0] == 1))


def make_sampler(engines, one: EvalSet) -> GroupSampler:
    return GroupSampler(
        engines, score, group_size=one.samples_per_prompt, params=one.params, max_retries=0, metrics=RolloutMetrics("rollout")
    )


async def test_every_set_is_run_on_the_rollout_engines_with_its_own_parameters() -> None:
    engines = Echo()
    greedy, sampled = SamplingParams(4, temperature=0.0), SamplingParams(4, temperature=0.5)
    prompts = [Prompt(index, np.array([index % 2, 9], np.int32)) for index in range(4)]
    sets = RunEvalSets(
        [EvalSet("easy", prompts, greedy), EvalSet("many", prompts[:1], sampled, samples_per_prompt=3)],
        engines,
        produce=produce,
        make_sampler=make_sampler,
        max_concurrent_samples=4,
    )
    result = await Shared(PluginOptions(), FACTS).evaluate_checkpoint(Checkpoint(3, 7, None), sets)
    easy, many = result.sets["easy"], result.sets["many"]
    assert (easy.mean_reward, easy.num_prompts, easy.num_samples, easy.version_mean) == (0.5, 4, 4, 7.0)
    assert (many.mean_reward, many.num_prompts, many.num_samples) == (0.0, 1, 3)
    assert engines.asked == [greedy] * 4 + [sampled] * 3


async def test_a_few_completions_are_kept_as_text_of_the_same_prompts_each_time() -> None:
    def spelled(token_ids) -> str:
        if token_ids == [0]:
            raise KeyError("a token without a text")
        return "".join("ab"[token] if token < 2 else "." for token in token_ids)

    prompts = [Prompt(index, np.array([index % 2, 9], np.int32)) for index in range(4)]
    params = SamplingParams(4)
    sets = RunEvalSets(
        [EvalSet("spelled", prompts, params, 2, spelled), EvalSet("ids", prompts, params)],
        Echo(),
        produce=produce,
        make_sampler=make_sampler,
        max_concurrent_samples=4,
        shown_samples=2,
    )
    for _ in range(2):
        result = await sets.run(sets.rollout_engines)
        assert result.sets["spelled"].samples == (
            EvalSample("a.", "0", 0.0, "completed"),  # no text for it: the token ids
            EvalSample("b.", "b", 1.0, "completed"),
        )
        assert result.sets["ids"].samples == (EvalSample("0 9", "0", 0.0, "completed"), EvalSample("1 9", "1", 1.0, "completed"))


def test_submission_pauses_and_no_snapshot_is_asked_for() -> None:
    assert Shared.uses_rollout_engines
    assert not Shared.needs_snapshot

"""Producers that break one rule each."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
from asyncrl import Group, Plugin, PluginOptions, Prompt, RunFacts, Sample, SampleDone, Sampler, Status, full_mask, hookimpl
from asyncrl.samples import TokenIds

from broken.breaking import breaks

STATUS = {"stop": Status.COMPLETED, "length": Status.TRUNCATED}


@breaks("")
class Right(Plugin):
    def __init__(self, options: PluginOptions, run: RunFacts) -> None:
        super().__init__(options, run)
        self.produced: dict[int, Group] = {}

    @hookimpl
    async def produce(self, prompt: Prompt, sampler: Sampler, done: SampleDone) -> Group:
        async def one(prompt: Prompt) -> Sample:
            answer = await sampler.generate(prompt, self.context(prompt))
            status = STATUS.get(answer.finish_reason, Status.ABORTED)
            mask = full_mask(len(answer.token_ids))
            sample = Sample(
                answer.token_ids, answer.logprobs, mask, answer.spans, status, 0.0, "aborted" * (status is Status.ABORTED)
            )
            return await self.score(sampler, prompt, sample)

        return await self.group(prompt, sampler, one, done)

    def context(self, prompt: Prompt) -> TokenIds:
        return prompt.token_ids

    async def score(self, sampler: Sampler, prompt: Prompt, sample: Sample) -> Sample:
        return await sampler.score(prompt, sample)

    async def group(self, prompt: Prompt, sampler: Sampler, one: object, done: SampleDone) -> Group:
        group = await sampler.group(prompt, one, done)  # type: ignore[arg-type]
        self.produced[prompt.prompt_id] = group
        return group


@breaks("test_a_group_has_group_size_samples_of_its_prompt")
class ForgetsTheFifth(Right):
    async def group(self, prompt: Prompt, sampler: Sampler, one: object, done: SampleDone) -> Group:
        group = await super().group(prompt, sampler, one, done)
        return replace(group, samples=group.samples[:4])


@breaks("test_its_samples_are_whole")
class WidensLogprobs(Right):
    async def score(self, sampler: Sampler, prompt: Prompt, sample: Sample) -> Sample:
        scored = await super().score(sampler, prompt, sample)
        return replace(scored, logprobs=scored.logprobs.astype(np.float64))


@breaks("test_its_samples_are_scored")
class ScoresNothing(Right):
    async def score(self, sampler: Sampler, prompt: Prompt, sample: Sample) -> Sample:
        return sample


@breaks("test_every_sample_is_told_once")
class TellsGoodSamplesOnly(Right):
    async def group(self, prompt: Prompt, sampler: Sampler, one: object, done: SampleDone) -> Group:
        def told(sample: Sample) -> None:
            if sample.usable:
                done(sample)

        return await super().group(prompt, sampler, one, told)


@breaks("test_a_sample_is_told_as_it_ends")
class TellsInTheEnd(Right):
    async def group(self, prompt: Prompt, sampler: Sampler, one: object, done: SampleDone) -> Group:
        group = await super().group(prompt, sampler, one, lambda sample: None)
        for sample in group.samples:
            done(sample)
        return group


@breaks("test_a_cancelled_call_leaves_nothing")
class SwallowsCancellation(Right):
    async def group(self, prompt: Prompt, sampler: Sampler, one: object, done: SampleDone) -> Group:
        try:
            return await super().group(prompt, sampler, one, done)
        except asyncio.CancelledError:
            return Group(prompt, ())


@breaks("test_a_prompt_that_is_tried_again_is_pristine")
class AsksMoreTheSecondTime(Right):
    def context(self, prompt: Prompt) -> TokenIds:
        again = prompt.prompt_id in self.produced
        return np.append(prompt.token_ids, np.int32(1)) if again else prompt.token_ids


@breaks("test_a_run_with_faults_balances_its_books")
class KeepsGroupsBySource(Right):
    """Thinks that prompts without a source are all the same one."""

    kept: Group | None = None

    async def group(self, prompt: Prompt, sampler: Sampler, one: object, done: SampleDone) -> Group:
        if prompt.source:
            return await super().group(prompt, sampler, one, done)
        self.kept = self.kept or await super().group(prompt, sampler, one, done)
        return self.kept

"""Runs eval sets on engines with the run's own producer and reward, and sums the samples up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from asyncrl.evaluation.records import EvalResult, EvalSample, EvalSet, SetResult, token_ids_as_text
from asyncrl.rollout.engine import Generates
from asyncrl.rollout.sampler import Sampler
from asyncrl.samples import Group, Prompt, Sample, Status, TokenIds


class RunEvalSets:
    """The `EvalSets` a backend is handed.

    Args:
        produce: the producer's hook.
        make_sampler: makes a sampler over some engines for a set.
        max_concurrent_samples: cap on samples in flight.
        shown_samples: of so many prompts of each set one sample is kept as text.
    """

    def __init__(
        self,
        sets: Sequence[EvalSet],
        rollout_engines: Generates,
        *,
        produce: Callable[..., Awaitable[Group]],
        make_sampler: Callable[[Generates, EvalSet], Sampler],
        max_concurrent_samples: int,
        shown_samples: int = 0,
    ) -> None:
        self.sets = sets
        self.rollout_engines = rollout_engines
        self._produce = produce
        self._make_sampler = make_sampler
        self._max_concurrent_samples = max_concurrent_samples
        self._shown_samples = shown_samples

    async def run(self, engines: Generates) -> EvalResult:
        """Generate and score every set on `engines`, one set after the other."""
        return EvalResult({one.name: await self._run_set(one, engines) for one in self.sets})

    async def _run_set(self, one: EvalSet, engines: Generates) -> SetResult:
        sampler = self._make_sampler(engines, one)
        slots = asyncio.Semaphore(max(1, self._max_concurrent_samples // one.samples_per_prompt))

        async def produce(prompt: Prompt) -> Group:
            async with slots:
                return await self._produce(prompt=prompt, sampler=sampler, done=_ignore)

        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(produce(prompt)) for prompt in one.prompts]
        groups = [task.result() for task in running]
        return replace(summarise(groups), samples=to_read(groups[: self._shown_samples], one))


def _ignore(sample: Sample) -> None:
    return None


def to_read(groups: Sequence[Group], one: EvalSet) -> tuple[EvalSample, ...]:
    """Return the first sample of each group as text."""
    return tuple(
        EvalSample(
            _text(group.prompt.token_ids, one),
            _text(sample.token_ids, one),
            sample.reward,
            sample.reason or sample.status.value,
        )
        for group in groups
        for sample in group.samples[:1]
    )


def _text(token_ids: TokenIds, one: EvalSet) -> str:
    ids = token_ids.tolist()
    try:
        return one.text(ids)
    except Exception:  # what people read is not worth an eval point
        return token_ids_as_text(ids)


def summarise(groups: Sequence[Group]) -> SetResult:
    """Sum groups up. A failed or aborted sample counts as reward 0 and as failed."""
    samples = [sample for group in groups for sample in group.samples]
    usable = [sample for sample in samples if sample.usable]
    tokens = sum(count for sample in samples for _, count in sample.spans)
    count = max(len(samples), 1)
    values: dict[str, Any] = {
        "mean_reward": sum(sample.reward for sample in usable) / count,
        "num_prompts": len(groups),
        "num_samples": len(samples),
        "failed": (len(samples) - len(usable)) / count,
        "truncated": sum(sample.status is Status.TRUNCATED for sample in samples) / count,
        "mean_length": sum(len(sample.token_ids) for sample in samples) / count,
        "version_mean": sum(version * n for sample in samples for version, n in sample.spans) / max(tokens, 1),
        "mixed_version": sum(len(sample.spans) > 1 for sample in samples) / count,
    }
    return SetResult(**values)

"""What a producer works with: generate, score, and put a group together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

from asyncrl.samples import Completion, Group, Prompt, Sample, SamplingParams, TokenIds

SampleDone: TypeAlias = Callable[[Sample], None]
"""Called once for each sample of a group when it has ended; frees its slot."""


class Sampler(Protocol):
    """Handed to `produce`. One object serves every group.

    Attributes:
        group_size: samples a group.
        params: the run's sampling parameters (an eval set's own while it evaluates).
    """

    group_size: int
    params: SamplingParams

    async def generate(self, prompt: Prompt, token_ids: TokenIds, params: SamplingParams | None = None) -> Completion:
        """Continue `token_ids` (int32[n]; the prompt's, or a longer context of the same prompt) on the engine pool, sampling by
        `self.params` unless others are given: other lengths and ends only, for training counts on the run's temperature, top_p and
        top_k. Transient engine errors were retried; raises `RequestFailed` when that did not help."""
        ...

    async def score(self, prompt: Prompt, sample: Sample) -> Sample:
        """Return the sample with the task's reward; FAILED with the reason if the task's scoring raised."""
        ...

    async def group(self, prompt: Prompt, one: Callable[[Prompt], Awaitable[Sample]], done: SampleDone) -> Group:
        """Run `one(prompt)` `group_size` times at once and put the results together. A failed sample alone is generated again,
        at most `max_retries` times; `done` is called as each sample ends."""
        ...

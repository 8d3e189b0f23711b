"""The `Sampler` that a producer is handed: generate on the pool, score by the task, and put a group together."""

from __future__ import annotations

import asyncio
import logging
import math
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from typing import Any, TypeAlias

import numpy as np

from asyncrl.errors import BooksError, EnginesLost, PluginFailed, PluginLoadError, RequestFailed, Stopped
from asyncrl.ledger import reason_word
from asyncrl.rollout.engine import GenerateRequest, Generates
from asyncrl.rollout.metrics import RolloutMetrics
from asyncrl.rollout.sampler import SampleDone
from asyncrl.samples import Completion, Group, Prompt, Sample, SamplingParams, Score, Status, TokenIds, full_mask

log = logging.getLogger("asyncrl")

ScoreHook: TypeAlias = Callable[..., Awaitable[Any]]
Discarded: TypeAlias = Callable[[int, str], None]

MASK = 2**64 - 1

# Errors that say that the run is over, not that this one reward is wrong.
FATAL = (BooksError, EnginesLost, PluginLoadError, Stopped)


class GroupSampler:
    """One object serves every group.

    Every request of a sample carries a seed that depends on the run's seed, the prompt, the place in the group, the try and the turn, and
    on nothing that happened before: an engine that draws from it alone gives a resumed run what it would have given the other.

    Args:
        pool: where requests go.
        score: the task's hook, called as ``score(prompt=…, sample=…)``.
        metrics: where failures and retries are counted.
        discarded: called with (tokens, reason) for each sample that is thrown away and generated again.
        cut: returns a sample as it is trained, before it is scored: what is cut off must not earn a reward.
        seed: the run's.
    """

    def __init__(
        self,
        pool: Generates,
        score: ScoreHook,
        *,
        group_size: int,
        params: SamplingParams,
        max_retries: int,
        metrics: RolloutMetrics,
        discarded: Discarded = lambda tokens, reason: None,
        cut: Callable[[Prompt, Sample], Sample] = lambda prompt, sample: sample,
        seed: int = 0,
    ) -> None:
        self.group_size = group_size
        self.params = params
        self._generate = pool.generate
        self._score = score
        self._max_retries = max_retries
        self._metrics = metrics
        self._discarded = discarded
        self._cut = cut
        self._seed = seed
        self._warned: set[str] = set()

    def generate(
        self, prompt: Prompt, token_ids: TokenIds, params: SamplingParams | None = None
    ) -> Coroutine[Any, Any, Completion]:
        """Continue `token_ids` (int32[n]) on the pool, by `self.params` unless others are given. Raises `RequestFailed` when retrying
        transient errors did not help."""
        draw = DRAW.get()
        seed = -1 if draw is None else draw.seed(self._seed, prompt.prompt_id)
        return self._generate(GenerateRequest(token_ids, params or self.params, prompt.prompt_id, seed))

    async def score(self, prompt: Prompt, sample: Sample) -> Sample:
        """Return the sample with the task's reward; FAILED with the reason if the task's scoring raised. A sample that can't be
        trained on is not scored."""
        if not sample.usable:
            return sample
        sample = self._cut(prompt, sample)
        try:
            score = await self._score(prompt=prompt, sample=sample)
        except FATAL:
            raise
        except Exception as error:
            return self._unscored(prompt, sample, error)
        if not isinstance(score, Score):
            raise PluginFailed(f"the task answered score_sample with {score!r}; right is a Score")
        if not math.isfinite(score.reward):
            return self._unscored(prompt, sample, ValueError(f"the reward is {score.reward}"))
        if score.failure:
            self._metrics.score_failures.add(1, reason_word(score.failure))
        return Sample(
            sample.token_ids,
            sample.logprobs,
            sample.loss_mask,
            sample.spans,
            sample.status,
            score.reward,
            sample.reason or score.failure,
        )

    async def group(self, prompt: Prompt, one: Callable[[Prompt], Awaitable[Sample]], done: SampleDone) -> Group:
        """Run `one(prompt)` `group_size` times at once and put the results together, in the order they were started. A failed
        sample alone is generated again, at most `max_retries` times; `done` is called once as each sample ends.

        Any error but `RequestFailed` from one sample cancels the others and is raised.
        """
        loop = asyncio.get_running_loop()
        group = _Running(self.group_size, loop)
        tasks = [loop.create_task(self._sample(index, group, prompt, one, done)) for index in range(self.group_size)]
        try:
            await group.all_done
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
        return Group(prompt, tuple(group.samples), tuple(group.seconds))

    async def _sample(
        self, index: int, group: _Running, prompt: Prompt, one: Callable[[Prompt], Awaitable[Sample]], done: SampleDone
    ) -> None:
        attempt = 0
        try:
            while True:
                DRAW.set(_Draw(index, attempt))
                try:
                    sample = await one(prompt)
                except RequestFailed as error:
                    sample = _nothing_generated(Status.FAILED, f"request_failed: {error}")
                if sample.usable or not self._tries_again(sample, attempt):
                    break
                attempt += 1
            done(sample)
            group.ended(index, sample)
        except BaseException as error:
            group.failed(error)

    def _tries_again(self, sample: Sample, attempt: int) -> bool:
        reason = reason_word(sample.reason or sample.status.value)
        self._metrics.sample_failures.add(1, reason)
        if attempt == self._max_retries:
            return False
        self._metrics.sample_retries.add(1, reason)
        if tokens := len(sample.token_ids):
            self._metrics.tokens.add(tokens, reason)
            self._discarded(tokens, reason)
        return True

    def _unscored(self, prompt: Prompt, sample: Sample, error: Exception) -> Sample:
        cause = error.__cause__ if isinstance(error, PluginFailed) and error.__cause__ is not None else error
        what = f"reward_error: {type(cause).__name__}: {cause}"
        if type(cause).__name__ not in self._warned:
            self._warned.add(type(cause).__name__)
            detail = "".join(traceback.format_exception(cause))
            log.warning(
                "scoring a sample of prompt %d (%s) failed; this kind is said once\n%s", prompt.prompt_id, prompt.source, detail
            )
        return Sample(sample.token_ids, sample.logprobs, sample.loss_mask, sample.spans, Status.FAILED, sample.reward, what)


class _Draw:
    """Which sample the current task generates; counts its requests."""

    __slots__ = ("_attempt", "_index", "_turn")

    def __init__(self, index: int, attempt: int) -> None:
        self._index = index
        self._attempt = attempt
        self._turn = 0

    def seed(self, *parts: int) -> int:
        """Return the seed of the next request, in [0, 2^53)."""
        turn, self._turn = self._turn, self._turn + 1
        return mixed(*parts, self._index, self._attempt, turn)


DRAW: ContextVar[_Draw | None] = ContextVar("DRAW", default=None)


def mixed(*parts: int) -> int:
    """Return a number in [0, 2^53) that depends on all of the integers and on their order (splitmix64: Steele et al., 2014)."""
    state = 0
    for part in parts:
        state = (state ^ part) + 0x9E3779B97F4A7C15 & MASK
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & MASK
        state = (state ^ state >> 27) * 0x94D049BB133111EB & MASK
        state ^= state >> 31
    return state >> 11


class _Running:
    """The samples of a group while they are made. Counting them down costs half of what `asyncio.gather` does."""

    __slots__ = ("_left", "_started", "_time", "all_done", "samples", "seconds")

    def __init__(self, size: int, loop: asyncio.AbstractEventLoop) -> None:
        self.samples: list[Sample] = [NO_SAMPLE] * size
        self.seconds = [0.0] * size
        self.all_done: asyncio.Future[None] = loop.create_future()
        self._left = size
        self._time = loop.time
        self._started = loop.time()

    def ended(self, index: int, sample: Sample) -> None:
        self.samples[index] = sample
        self.seconds[index] = self._time() - self._started
        self._left -= 1
        if not self._left and not self.all_done.done():
            self.all_done.set_result(None)

    def failed(self, error: BaseException) -> None:
        if self.all_done.done():
            return
        if isinstance(error, asyncio.CancelledError):
            self.all_done.cancel()
        else:
            self.all_done.set_exception(error)


def _nothing_generated(status: Status, reason: str) -> Sample:
    """Return a sample for which nothing was generated."""
    return Sample(np.zeros(0, np.int32), np.zeros(0, np.float32), full_mask(0), (), status, 0.0, reason)


NO_SAMPLE = _nothing_generated(Status.ABORTED, "")

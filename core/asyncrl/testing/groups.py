"""Groups, loads and facts of runs to test with: small and whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from asyncrl.authoring import RunFacts
from asyncrl.rollout.schedule import LoadView
from asyncrl.samples import Group, Prompt, Sample, Status, full_mask, merge_spans


def small_run(**changes: Any) -> RunFacts:
    """Return the facts of a small run: 6 steps of 4 groups of 4, 16 samples in flight; `changes` are other fields of `RunFacts`."""
    facts = {"batch_size": 4, "group_size": 4, "max_concurrent_samples": 16, "steps": 6, "max_new_tokens": 64}
    return RunFacts(**{**facts, **changes})


def make_sample(
    versions: Sequence[int] = (0,), *, tokens: int = 3, reward: float = 0.0, status: Status = Status.COMPLETED
) -> Sample:
    """Return a sample that generated `tokens` tokens under each of `versions`, one after the other."""
    length = tokens * len(versions)
    token_ids = np.arange(1, length + 1, dtype=np.int32)
    spans = merge_spans((version, tokens) for version in versions)
    return Sample(token_ids, np.full(length, -1.0, np.float32), full_mask(length), spans, status, reward)


def make_group(
    prompt_id: int, oldest: int = 0, *, newest: int | None = None, rewards: Sequence[float] = (0.0, 1.0), tokens: int = 3
) -> Group:
    """Return a finished group with one sample a reward.

    Args:
        oldest: weight version of its oldest trained tokens.
        newest: version that its first sample goes on under, after `tokens` tokens; `oldest` if it is None.
    """
    prompt = Prompt(prompt_id, np.array([prompt_id % 97, 1, 2], np.int32), {"answer": prompt_id}, f"suite:{prompt_id}")
    spans = (oldest,) if newest is None or newest == oldest else (oldest, newest)
    first = make_sample(spans, tokens=tokens, reward=rewards[0])
    return Group(prompt, (first, *(make_sample((oldest,), tokens=tokens, reward=reward) for reward in rewards[1:])))


def same_prompt(one: Prompt, other: Prompt) -> bool:
    """Whether two prompts say the same; `==` can't compare their arrays."""
    return one is other or (
        isinstance(one, Prompt)
        and isinstance(other, Prompt)
        and one.prompt_id == other.prompt_id
        and np.array_equal(one.token_ids, other.token_ids)
        and one.data == other.data
    )


def same_group(one: Group, other: Group) -> bool:
    """Whether two groups hold the same samples of the same prompt."""
    return one is other or (
        same_prompt(one.prompt, other.prompt)
        and len(one.samples) == len(other.samples)
        and all(_same_sample(*pair) for pair in zip(one.samples, other.samples, strict=True))
    )


def _same_sample(one: Sample, other: Sample) -> bool:
    arrays = ("token_ids", "logprobs", "loss_mask")
    return (one.spans, one.status, one.reward) == (other.spans, other.status, other.reward) and all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in arrays
    )


def idle_load(run: RunFacts, **changes: Any) -> LoadView:
    """Return the load of a run that has just begun, with these fields changed: nothing is in flight, and the trainer waits for its
    first batch."""
    idle = LoadView(
        group_size=run.group_size,
        batch_size=run.batch_size,
        max_concurrent_samples=run.max_concurrent_samples,
        samples_in_flight=0,
        groups_in_flight=0,
        groups_buffered=0,
        groups_in_batch=0,
        groups_trained=0,
        groups_issued=0,
        trainer_waiting=True,
        version=0,
        steps_left=run.steps,
        batches_to_deadline=run.steps,
    )
    return replace(idle, **changes)

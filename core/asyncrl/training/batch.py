"""Groups to the flat arrays that a trainer is given."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from asyncrl.samples import Group, SamplingParams
from asyncrl.training.interfaces import TrainingBatch

Scalar = TypeVar("Scalar", bound=np.generic)


@lru_cache(maxsize=4096)
def _prompt_fill(length: int) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Log-probabilities and loss mask of a prompt: zeros. Shared between samples, never written to."""
    return np.zeros(length, np.float32), np.zeros(length, np.bool_)


def flatten(
    groups: Sequence[Group],
    *,
    version: int,
    step: int,
    params: SamplingParams,
    keep: NDArray[np.bool_] | None = None,
) -> TrainingBatch:
    """Return the batch of some groups, in the order given.

    Args:
        version: weight version the trainer is about to improve.
        step: training step, from 1.
        params: how the samples were drawn.
        keep: bool[samples]; False leaves a sample out of the loss. None keeps all.

    Raises:
        ValueError: a sample's arrays or spans differ in length; names its prompt.
    """
    tokens: list[NDArray[np.int32]] = []
    logprobs: list[NDArray[np.float32]] = []
    masks: list[NDArray[np.bool_]] = []
    span_versions: list[int] = []
    span_lengths: list[int] = []
    rewards: list[float] = []
    owners: list[int] = []
    lengths: list[int] = []
    prompt_lengths: list[int] = []
    for index, group in enumerate(groups):
        prompt = group.prompt.token_ids
        size = len(prompt)
        no_logprobs, no_mask = _prompt_fill(size)
        for sample in group.samples:
            tokens += (prompt, sample.token_ids)
            logprobs += (no_logprobs, sample.logprobs)
            masks += (no_mask, sample.loss_mask)
            span_versions.append(-1)
            span_lengths.append(size)
            for span_version, count in sample.spans:
                span_versions.append(span_version)
                span_lengths.append(count)
            lengths.append(size + len(sample.token_ids))
            rewards.append(sample.reward)
        owners += [index] * len(group.samples)
        prompt_lengths += [size] * len(group.samples)

    starts = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    total = int(starts[-1])
    versions = np.repeat(np.asarray(span_versions, np.int32), span_lengths)
    loss_mask = _join(masks, np.bool_)
    batch = TrainingBatch(
        version=version,
        step=step,
        token_ids=_join(tokens, np.int32),
        starts=starts,
        prompt_lengths=np.asarray(prompt_lengths, np.int32),
        loss_mask=loss_mask,
        logprobs=_join(logprobs, np.float32),
        versions=versions,
        rewards=np.asarray(rewards, np.float32),
        groups=np.asarray(owners, np.int32),
        prompt_ids=np.asarray([group.prompt_id for group in groups], np.int64),
        num_response_tokens=int(np.count_nonzero(loss_mask)),
        temperature=params.temperature,
        max_new_tokens=params.max_new_tokens,
        top_p=params.top_p,
        top_k=params.top_k,
    )
    if not (len(batch.token_ids) == len(batch.loss_mask) == len(batch.logprobs) == len(versions) == total):
        raise ValueError(f"a sample's arrays differ in length: {_misfits(groups)}")
    if keep is not None:
        batch.loss_mask[~np.repeat(keep, lengths)] = False
    return batch


def _join(parts: Sequence[NDArray[Scalar]], dtype: type[Scalar]) -> NDArray[Scalar]:
    return np.concatenate(parts, dtype=dtype, casting="same_kind") if parts else np.zeros(0, dtype)


def _misfits(groups: Sequence[Group]) -> str:
    return ", ".join(
        f"prompt {group.prompt_id} sample {index}"
        for group in groups
        for index, sample in enumerate(group.samples)
        if len({len(sample.token_ids), len(sample.logprobs), len(sample.loss_mask), sum(n for _, n in sample.spans)}) > 1
    )

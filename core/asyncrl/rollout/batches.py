"""Batches that are handed to the trainer: masked, flattened, and remembered until they are trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asyncrl.errors import BooksError, PluginFailed
from asyncrl.host import Host
from asyncrl.ledger import Ledger
from asyncrl.rollout.metrics import RolloutMetrics
from asyncrl.rollout.record import HandedOut
from asyncrl.rollout.verdicts import BatchView
from asyncrl.samples import Group, Sample, SamplingParams, Status, full_mask
from asyncrl.training.interfaces import TrainingBatch


@dataclass(frozen=True)
class BatchInfo:
    """What a batch is made of; staleness in versions, lengths in tokens."""

    step: int
    version: int
    prompt_ids: tuple[int, ...]
    staleness_mean: float
    staleness_max: int
    reward_mean: float
    length_mean: float
    num_tokens: int


class Batches:
    """Attributes: staleness_sum, staleness_max: running over the run, of trained groups only; groups: handed out; with_trainer: what was
    handed out and is not trained, by step."""

    def __init__(
        self, host: Host, ledger: Ledger, metrics: RolloutMetrics, params: SamplingParams, make: Callable[..., TrainingBatch]
    ) -> None:
        self.staleness_sum = 0
        self.staleness_max = 0
        self.groups = 0
        self.with_trainer: dict[int, HandedOut] = {}
        self._host = host
        self._ledger = ledger
        self._metrics = metrics
        self._params = params
        self._make = make
        self._has_masks = host.has("mask_batch")

    def hand_out(self, groups: Sequence[Group], version: int, step: int) -> tuple[TrainingBatch, BatchInfo]:
        """Make the batch of one step. Raises BooksError if the step has a batch already that was not trained."""
        if step in self.with_trainer:
            raise BooksError(f"step {step} was handed a batch already, and it was not trained")
        keep = self._mask(groups, version) if self._has_masks else None
        try:
            batch = self._make(groups, version=version, step=step, params=self._params, keep=keep)
        except ValueError as cause:
            raise PluginFailed(f"{self._host.owner('produce')}: {cause}") from cause
        staleness = tuple(group.staleness(version) for group in groups)
        samples = [sample for group in groups for sample in group.samples]
        lengths = (np.diff(batch.starts) - batch.prompt_lengths).astype(np.int64, copy=False)
        self.with_trainer[step] = HandedOut(
            step=step,
            prompt_ids=tuple(group.prompt_id for group in groups),
            tokens=tuple(group.num_tokens for group in groups),
            masked_tokens=(0,) * len(groups) if keep is None else _masked(batch, lengths, keep),
            staleness=staleness,
            lengths=lengths,
            rewards=batch.rewards,
            age_share=_age_share(samples, version, keep),
            mixed=sum(len(sample.spans) > 1 for sample in samples),
            truncated=sum(sample.status is Status.TRUNCATED for sample in samples),
        )
        self.groups += len(groups)
        self._host.observe("on_batch", batch=batch)
        return batch, BatchInfo(
            step=step,
            version=version,
            prompt_ids=self.with_trainer[step].prompt_ids,
            staleness_mean=sum(staleness) / len(staleness),
            staleness_max=max(staleness),
            reward_mean=float(batch.rewards.mean()),
            length_mean=float(lengths.mean()),
            num_tokens=batch.num_response_tokens,
        )

    def trained(self, step: int) -> None:
        """Book a step's batch as trained. Raises BooksError for a step that has none."""
        batch = self.with_trainer.pop(step, None)
        if batch is None:
            raise BooksError(f"step {step} cannot be trained: it has no batch, or was trained already")
        metrics = self._metrics
        tokens = 0
        for prompt_id, masked in zip(batch.prompt_ids, batch.masked_tokens, strict=True):
            trained = self._ledger.train(prompt_id, masked_tokens=masked)
            tokens += trained
            self._host.observe("on_group_ended", prompt_id=prompt_id, fate="trained", tokens=trained)
        self.staleness_sum += sum(batch.staleness)
        self.staleness_max = max(self.staleness_max, *batch.staleness)
        metrics.groups_trained.add(len(batch.prompt_ids))
        metrics.tokens.add(tokens, "trained")
        if any(batch.masked_tokens):
            metrics.tokens.add(sum(batch.masked_tokens), "masked")
        samples = len(batch.rewards)
        for value in batch.staleness:
            metrics.consumed_staleness.observe(value)
        for age, share in batch.age_share.items():
            metrics.age_share.observe(share, str(age))
        metrics.length_trained.observe_sum(samples, int(batch.lengths.sum()), int(batch.lengths.min()), int(batch.lengths.max()))
        rewards = batch.rewards
        metrics.reward_trained.observe_sum(samples, float(rewards.sum()), float(rewards.min()), float(rewards.max()))
        metrics.mixed_versions.observe(batch.mixed / samples)
        metrics.truncated.observe(batch.truncated / samples)

    def _mask(self, groups: Sequence[Group], version: int) -> NDArray[np.bool_]:
        samples = sum(len(group.samples) for group in groups)
        keep = np.ones(samples, np.bool_)
        for active, mask in self._host.each("mask_batch", batch=BatchView(tuple(groups), version)):
            if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (samples,):
                raise PluginFailed(f"{active} answered mask_batch with something else than bool[{samples}]: {mask!r}")
            keep &= mask
        return keep


def _age_share(samples: Sequence[Sample], version: int, keep: NDArray[np.bool_] | None) -> dict[int, float]:
    """Share of the trained tokens by age in versions. By spans: a look at each token would cost more than the rest of the batch."""
    counts: dict[int, int] = {}
    for index, sample in enumerate(samples):
        if keep is not None and not keep[index]:
            continue
        mask, start = sample.loss_mask, 0
        all_trained = mask is full_mask(len(mask))
        for span_version, length in sample.spans:
            trained = length if all_trained else int(np.count_nonzero(mask[start : start + length]))
            age = version - span_version
            counts[age] = counts.get(age, 0) + trained
            start += length
    total = sum(counts.values())
    return {age: count / total for age, count in sorted(counts.items()) if count}


def _masked(batch: TrainingBatch, lengths: NDArray[np.int64], keep: NDArray[np.bool_]) -> tuple[int, ...]:
    """Generated tokens of each group's masked samples."""
    lost = np.bincount(batch.groups, weights=np.where(keep, 0, lengths), minlength=len(batch.prompt_ids))
    return tuple(int(count) for count in lost)

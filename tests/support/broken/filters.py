"""Filters that break one rule each."""

from __future__ import annotations

import numpy as np
from asyncrl import KEEP, BatchView, Group, Mask, Plugin, PluginOptions, RunFacts, Verdict, drop, hookimpl, retry

from broken.breaking import breaks


@breaks("")
class Right(Plugin):
    """Drops groups with a negative reward, and masks samples of one token."""

    def __init__(self, options: PluginOptions, run: RunFacts) -> None:
        super().__init__(options, run)
        self.asked = 0

    @hookimpl
    def judge_group(self, group: Group) -> Verdict:
        self.asked += 1
        return KEEP if all(sample.reward >= 0 for sample in group.samples) else self.refusal()

    def refusal(self) -> Verdict:
        return drop("negative")

    @hookimpl
    def mask_batch(self, batch: BatchView) -> Mask:
        self.asked += 1
        return np.array([len(sample.token_ids) > 1 for group in batch.groups for sample in group.samples], np.bool_)


@breaks("test_its_verdicts_are_verdicts")
class WantsARetry(Right):
    def refusal(self) -> Verdict:
        return retry("negative")


@breaks("test_the_same_group_gets_the_same_verdict")
class ChangesItsReason(Right):
    def refusal(self) -> Verdict:
        return drop("negative" if self.asked % 2 else "bad")


@breaks("test_its_mask_fits_the_batch")
class MasksWithNumbers(Right):
    @hookimpl
    def mask_batch(self, batch: BatchView) -> Mask:
        mask = super().mask_batch(batch)
        return mask.astype(np.int8) if len(batch.groups) == 1 else mask  # type: ignore[return-value]


@breaks("test_the_same_batch_gets_the_same_mask")
class MasksByChance(Right):
    @hookimpl
    def mask_batch(self, batch: BatchView) -> Mask:
        mask = super().mask_batch(batch)
        return mask if len(batch.groups) > 1 or self.asked % 2 else ~mask


@breaks("test_a_run_with_it_ends")
class DropsEverything(Right):
    @hookimpl
    def judge_group(self, group: Group) -> Verdict:
        return drop("unwanted")

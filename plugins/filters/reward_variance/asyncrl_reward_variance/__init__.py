"""Drops groups whose rewards are all alike: they carry no gradient."""

from __future__ import annotations

from asyncrl import KEEP, Group, OptionError, Plugin, PluginOptions, RunFacts, Verdict, drop, hookimpl
from pydantic import Field


class RewardVarianceOptions(PluginOptions):
    min_spread: float = Field(
        0.0, ge=0.0, description="Drop a group unless its highest and lowest reward differ by more than this."
    )


class RewardVariance(Plugin):
    """Keeps a group whose rewards differ: a group-relative advantage is zero everywhere else."""

    hook_api = 1
    Options = RewardVarianceOptions

    def __init__(self, options: RewardVarianceOptions, run: RunFacts) -> None:
        super().__init__(options, run)
        self._min_spread = options.min_spread
        self._refusal = drop("no_variance")

    @hookimpl
    def check_run(self, run: RunFacts) -> None:
        if run.group_size < 2:
            raise OptionError(
                "the filter reward-variance would drop every group of one sample, which has no variance",
                origin=f"group_size = {run.group_size}",
                remedy="use a group_size of at least 2, or leave the filter out",
            )

    @hookimpl
    def judge_group(self, group: Group) -> Verdict:
        rewards = [sample.reward for sample in group.samples]
        return KEEP if max(rewards) - min(rewards) > self._min_spread else self._refusal

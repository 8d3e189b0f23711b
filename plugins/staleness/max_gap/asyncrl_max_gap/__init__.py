"""Refuses groups with a token older than max_staleness versions."""

from __future__ import annotations

from typing import Literal

from asyncrl import KEEP, Distribution, Group, MetricSet, Plugin, PluginOptions, RunFacts, Verdict, drop, hookimpl, retry
from pydantic import Field


class MaxGapOptions(PluginOptions):
    max_staleness: int = Field(
        1,
        ge=0,
        description="Oldest that a trained token may be, in versions before the one about to be improved; 0 is on-policy.",
    )
    on_stale: Literal["drop", "retry"] | None = Field(
        None, description="What happens to the prompt of a refused group: dropped, or issued again; none does as on_unused says."
    )


class MaxGapMetrics(MetricSet):
    refused_staleness = Distribution("Staleness of the groups that were refused", unit="versions")


class MaxGap(Plugin):
    """Keeps a group if every trained token is at most `max_staleness` versions old."""

    Options = MaxGapOptions
    Metrics = MaxGapMetrics

    def __init__(self, options: MaxGapOptions, run: RunFacts) -> None:
        super().__init__(options, run)
        self._bound = options.max_staleness
        self._refusal = retry("stale") if (options.on_stale or run.on_unused) == "retry" else drop("stale")

    @hookimpl
    def judge_staleness(self, group: Group, version: int) -> Verdict:
        staleness = group.staleness(version)
        if staleness <= self._bound:
            return KEEP
        self.metrics.refused_staleness.observe(staleness)
        return self._refusal

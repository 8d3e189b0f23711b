"""Bounds the age of every trained token: a group that is too old is refused, or waited for before it can be."""

from __future__ import annotations

from typing import Literal

from asyncrl import (
    KEEP,
    Deadline,
    Distribution,
    Group,
    MetricSet,
    Plugin,
    PluginOptions,
    RunFacts,
    Verdict,
    drop,
    hookimpl,
    retry,
)
from pydantic import Field


class MaxGapOptions(PluginOptions):
    max_staleness: int = Field(
        1,
        ge=0,
        le=1_000_000,
        description="Oldest that a trained token may be, in versions before the one about to be improved; 0 is on-policy.",
    )
    on_stale: Literal["drop", "retry", "wait"] | None = Field(
        None,
        description="What happens to the prompt of a group that is too old: dropped, or issued again; none does as on_unused says. "
        "wait: the trainer waits for groups in flight that would become too old, which with scheduler paced leaves nothing to refuse.",
    )


class MaxGapMetrics(MetricSet):
    refused_staleness = Distribution("Staleness of the groups that were refused", unit="versions")


class MaxGap(Plugin):
    """Keeps a group if every trained token is at most `max_staleness` versions old. Groups at that age go into a batch first."""

    hook_api = 1
    Options = MaxGapOptions
    Metrics = MaxGapMetrics

    def __init__(self, options: MaxGapOptions, run: RunFacts) -> None:
        super().__init__(options, run)
        self._bound = options.max_staleness
        self._waits = options.on_stale == "wait"
        fate = run.on_unused if options.on_stale in (None, "wait") else options.on_stale
        self._refusal = retry("stale") if fate == "retry" else drop("stale")

    @hookimpl
    def staleness_deadline(self, oldest: int) -> Deadline:
        return Deadline(oldest + self._bound, waits=self._waits)

    @hookimpl
    def judge_staleness(self, group: Group, version: int) -> Verdict:
        staleness = group.staleness(version)
        if staleness <= self._bound:
            return KEEP
        self.metrics.refused_staleness.observe(staleness)
        return self._refusal

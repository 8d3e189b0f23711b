"""Drops a group once too large a share of its tokens comes from versions that are too old."""

from __future__ import annotations

from asyncrl import KEEP, Distribution, Group, MetricSet, Plugin, PluginOptions, Verdict, drop, hookimpl
from pydantic import Field


class TemplateNameOptions(PluginOptions):
    max_gap: int = Field(2, ge=0, description="Versions by which a token may be older than the trainer's and not count as old.")
    max_share: float = Field(0.1, ge=0.0, lt=1.0, description="Greatest share of old tokens with which a group is still trained.")


class TemplateNameMetrics(MetricSet):
    old_share = Distribution("Share of old tokens in the groups judged", unit="ratio")


class TemplateName(Plugin):
    """A long sample that began just before the limit is kept for the sake of its other tokens."""

    hook_api = 1
    Options = TemplateNameOptions
    Metrics = TemplateNameMetrics
    options: TemplateNameOptions
    metrics: TemplateNameMetrics

    @hookimpl
    def judge_staleness(self, group: Group, version: int) -> Verdict:
        oldest = version - self.options.max_gap
        old = sum(tokens for sample in group.samples for born, tokens in sample.spans if born < oldest)
        share = old / max(1, group.num_tokens)
        self.metrics.old_share.observe(share)
        return KEEP if share <= self.options.max_share else drop("old_tokens")

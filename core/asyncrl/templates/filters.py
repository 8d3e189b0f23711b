"""Drops groups in which too many samples were cut off at the token limit."""

from __future__ import annotations

from asyncrl import KEEP, Distribution, Group, MetricSet, Plugin, PluginOptions, Status, Verdict, drop, hookimpl
from pydantic import Field


class TemplateNameOptions(PluginOptions):
    max_truncated: float = Field(0.5, ge=0.0, le=1.0, description="Greatest share of samples that may have been cut off.")


class TemplateNameMetrics(MetricSet):
    truncated = Distribution("Share of each group's samples that were cut off at the token limit", unit="ratio")


class TemplateName(Plugin):
    """A sample that was cut off has a reward that says little of it."""

    hook_api = 1
    Options = TemplateNameOptions
    Metrics = TemplateNameMetrics
    options: TemplateNameOptions
    metrics: TemplateNameMetrics

    @hookimpl
    def judge_group(self, group: Group) -> Verdict:
        cut_off = sum(sample.status is Status.TRUNCATED for sample in group.samples)
        share = cut_off / max(1, len(group.samples))
        self.metrics.truncated.observe(share)
        return KEEP if share <= self.options.max_truncated else drop("cut_off")

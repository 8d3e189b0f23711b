"""Watches the rewards of finished groups, and warns when nothing can be learned from them for a while."""

from __future__ import annotations

import logging

from asyncrl import Distribution, Group, MetricSet, Plugin, PluginOptions, RunFacts, hookimpl
from pydantic import Field

log = logging.getLogger("asyncrl.template_name")


class TemplateNameOptions(PluginOptions):
    patience: int = Field(100, ge=1, description="Groups in a row whose rewards are all alike before it warns.")


class TemplateNameMetrics(MetricSet):
    spread = Distribution("Highest less lowest reward of each finished group", unit="reward")


class TemplateName(Plugin):
    """Rewards that are all alike within a group carry no gradient: the task is too easy or too hard, or its reward is broken."""

    hook_api = 1
    Options = TemplateNameOptions
    Metrics = TemplateNameMetrics
    options: TemplateNameOptions
    metrics: TemplateNameMetrics

    def __init__(self, options: TemplateNameOptions, run: RunFacts) -> None:
        super().__init__(options, run)
        self._alike = 0

    @hookimpl
    def on_group_finished(self, group: Group) -> None:
        rewards = [sample.reward for sample in group.samples]
        spread = max(rewards) - min(rewards)
        self.metrics.spread.observe(spread)
        self._alike = 0 if spread else self._alike + 1
        if self._alike and self._alike % self.options.patience == 0:
            log.warning("%d groups in a row had rewards that are all alike, the last one %g", self._alike, rewards[0])

"""Fills free sample slots, but lets generation run no more than some batches ahead of the trainer."""

from __future__ import annotations

from asyncrl import Distribution, LoadView, MetricSet, PluginOptions, SchedulerPlugin, hookimpl
from pydantic import Field


class TemplateNameOptions(PluginOptions):
    batches_ahead: float = Field(2.0, ge=1.0, description="Batches that may be started and not yet trained.")


class TemplateNameMetrics(MetricSet):
    ahead = Distribution("Batches that were started and not yet trained, whenever it was asked", unit="batches")


class TemplateName(SchedulerPlugin):
    """Goes by the load alone: what it granted shows in the next one, so it needs to remember nothing."""

    hook_api = 1
    Options = TemplateNameOptions
    Metrics = TemplateNameMetrics
    options: TemplateNameOptions
    metrics: TemplateNameMetrics

    @hookimpl
    def submission_quota(self, load: LoadView) -> int:
        self.metrics.ahead.observe(load.groups_outstanding / load.batch_size)
        free = (load.max_concurrent_samples - load.samples_in_flight) // load.group_size
        allowed = int(self.options.batches_ahead * load.batch_size) - load.groups_outstanding
        return max(0, min(free, allowed))

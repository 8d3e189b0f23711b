"""Evaluates on the rollout engines while submission pauses, and skips a point that takes too long."""

from __future__ import annotations

import asyncio

from asyncrl import Axis, Checkpoint, EvalPlugin, EvalResult, EvalSets, EvalSkip, Gauge, MetricSet, PluginOptions, hookimpl
from pydantic import Field


class TemplateNameOptions(PluginOptions):
    timeout: float = Field(600.0, gt=0.0, description="Seconds after which an evaluation is given up: the trainer waits for it.")


class TemplateNameMetrics(MetricSet):
    prompts = Gauge("Prompts that the last evaluation asked", unit="prompts", axis=Axis.EVAL_STEP)


class TemplateName(EvalPlugin):
    """Needs no snapshot: it measures the version that the rollout engines serve."""

    hook_api = 1
    Options = TemplateNameOptions
    Metrics = TemplateNameMetrics
    options: TemplateNameOptions
    metrics: TemplateNameMetrics
    uses_rollout_engines = True
    needs_snapshot = False

    @hookimpl
    async def evaluate_checkpoint(self, checkpoint: Checkpoint, sets: EvalSets) -> EvalResult:
        self.metrics.prompts.set(sum(len(one.prompts) for one in sets.sets))
        try:
            async with asyncio.timeout(self.options.timeout):
                return await sets.run(sets.rollout_engines)
        except TimeoutError:
            raise EvalSkip("timeout") from None

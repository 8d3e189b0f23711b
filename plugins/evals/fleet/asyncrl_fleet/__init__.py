"""Evaluates on engines of its own inside the job: like the rollout engines, unless an option says otherwise."""

from __future__ import annotations

from typing import Any

from asyncrl import Checkpoint, EngineSet, EvalPlugin, EvalResult, EvalSets, PluginOptions, hookimpl
from pydantic import Field


class FleetOptions(PluginOptions):
    """Options of the fleet."""

    num_engines: int = Field(1, ge=1, description="Engines that only evaluate.")
    engine: dict[str, Any] = Field(
        default_factory=dict, description="Options in which they differ from the rollout engines, such as engine.threads."
    )


class Fleet(EvalPlugin):
    """Loads each snapshot into its engines and evaluates there, while rollout and training go on."""

    hook_api = 1
    Options = FleetOptions
    options: FleetOptions

    @hookimpl
    def eval_engines(self, rollout: EngineSet) -> EngineSet:
        """Derive the fleet from the rollout engines."""
        return rollout.derive(self.options.num_engines, self.options.engine)

    @hookimpl
    async def evaluate_checkpoint(self, checkpoint: Checkpoint, sets: EvalSets) -> EvalResult:
        """Bring every engine to the checkpoint and run every set."""
        await sets.pin(checkpoint)
        return await sets.run(sets.engines)

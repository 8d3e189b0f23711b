"""Evaluates on the rollout engines while submission of new groups pauses: no weights move, the loop waits."""

from __future__ import annotations

from asyncrl import Checkpoint, EvalPlugin, EvalResult, EvalSets, hookimpl


class Shared(EvalPlugin):
    """Measures the version that the rollout engines serve."""

    hook_api = 1
    uses_rollout_engines = True
    needs_snapshot = False

    @hookimpl
    async def evaluate_checkpoint(self, checkpoint: Checkpoint, sets: EvalSets) -> EvalResult:
        """Run every set on the rollout engines."""
        return await sets.run(sets.rollout_engines)

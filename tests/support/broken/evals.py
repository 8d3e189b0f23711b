"""Eval backends that break one rule each."""

from __future__ import annotations

import asyncio
import shutil

from asyncrl import Checkpoint, EngineSet, EvalPlugin, EvalResult, EvalSets, EvalSkip, SetResult, hookimpl

from broken.breaking import breaks


@breaks("")
class Right(EvalPlugin):
    uses_rollout_engines = True
    needs_snapshot = False

    @hookimpl
    async def evaluate_checkpoint(self, checkpoint: Checkpoint, sets: EvalSets) -> EvalResult:
        return await self.evaluate(checkpoint, sets)

    async def evaluate(self, checkpoint: Checkpoint, sets: EvalSets) -> EvalResult:
        return await sets.run(sets.rollout_engines)


@breaks("test_a_point_ends_as_a_result_or_a_skip")
class ForgetsASet(Right):
    async def evaluate(self, checkpoint: Checkpoint, sets: EvalSets) -> EvalResult:
        result = await super().evaluate(checkpoint, sets)
        return EvalResult(dict(list(result.sets.items())[:1]))


@breaks("test_one_point_does_not_spoil_the_next")
class WorksOnce(Right):
    used = False

    async def evaluate(self, checkpoint: Checkpoint, sets: EvalSets) -> EvalResult:
        if self.used:
            raise EvalSkip("busy")
        self.used = True
        return await super().evaluate(checkpoint, sets)


@breaks("test_engines_that_fail_end_the_point")
class HasNoAnswerForFailures(Right):
    async def evaluate(self, checkpoint: Checkpoint, sets: EvalSets) -> EvalResult:
        result = await super().evaluate(checkpoint, sets)
        if all(one.failed == 1.0 for one in result.sets.values()):
            raise KeyError("no sample at all")
        return result


@breaks("test_a_cancelled_point_ends", point_seconds=2.0)
class LingersWhenCancelled(Right):
    async def evaluate(self, checkpoint: Checkpoint, sets: EvalSets) -> EvalResult:
        try:
            return await super().evaluate(checkpoint, sets)
        except asyncio.CancelledError:
            await asyncio.sleep(60.0)
            raise


@breaks("test_it_generates_on_the_rollout_engines_only_if_it_says_so")
class UsesThemSecretly(Right):
    uses_rollout_engines = False


@breaks("test_a_snapshot_that_is_missing_skips_the_point")
class MakesResultsUp(Right):
    uses_rollout_engines = False
    needs_snapshot = True

    async def evaluate(self, checkpoint: Checkpoint, sets: EvalSets) -> EvalResult:
        return EvalResult({one.name: SetResult(1.0, len(one.prompts), 1, 0.0, 0.0, 1.0, 0.0, 0.0) for one in sets.sets})


def made_up(sets: EvalSets) -> EvalResult:
    return EvalResult({one.name: SetResult(1.0, len(one.prompts), 1, 0.0, 0.0, 1.0, 3.0, 0.0) for one in sets.sets})


@breaks("")
class RightWithEngines(EvalPlugin):
    @hookimpl
    def eval_engines(self, rollout: EngineSet) -> EngineSet:
        return self.engines(rollout)

    @hookimpl
    async def evaluate_checkpoint(self, checkpoint: Checkpoint, sets: EvalSets) -> EvalResult:
        return await self.evaluate(checkpoint, sets)

    def engines(self, rollout: EngineSet) -> EngineSet:
        return rollout.derive(2, {})

    async def evaluate(self, checkpoint: Checkpoint, sets: EvalSets) -> EvalResult:
        await sets.pin(checkpoint)
        return await sets.run(sets.engines)


@breaks("test_it_evaluates_the_checkpoint_on_its_own_engines")
class ForgetsToPin(RightWithEngines):
    async def evaluate(self, checkpoint: Checkpoint, sets: EvalSets) -> EvalResult:
        return await sets.run(sets.engines)


@breaks("test_engines_of_another_version_give_no_result")
class MakesUpWhatItCannotHave(RightWithEngines):
    async def evaluate(self, checkpoint: Checkpoint, sets: EvalSets) -> EvalResult:
        checkpoint.require()
        try:
            return await super().evaluate(checkpoint, sets)
        except EvalSkip:
            return made_up(sets)


@breaks("test_a_snapshot_is_left_as_it_was")
class TidiesUp(RightWithEngines):
    async def evaluate(self, checkpoint: Checkpoint, sets: EvalSets) -> EvalResult:
        result = await super().evaluate(checkpoint, sets)
        shutil.rmtree(checkpoint.require())
        return result


@breaks("test_it_says_which_engines_it_wants")
class WantsNone(RightWithEngines):
    def engines(self, rollout: EngineSet) -> EngineSet:
        return rollout.derive(0, {})


@breaks("test_it_says_which_engines_it_wants")
class WantsBoth(Right):
    @hookimpl
    def eval_engines(self, rollout: EngineSet) -> EngineSet:
        return rollout.derive(1, {})

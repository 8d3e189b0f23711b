"""The rollout actor as the controller's parts see it: the training loop's `Rollout` and the publisher's engine side."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray

from asyncrl.authoring import RunFacts
from asyncrl.evaluation.records import Checkpoint, EvalResult
from asyncrl.plugins import PluginSpec
from asyncrl.rollout.engine import PauseMode
from asyncrl.rollout.saved_groups import Arrays
from asyncrl.runtime.cluster import ask
from asyncrl.runtime.engine_actor import EngineAddress
from asyncrl.runtime.rollout_actor import Progress, RolloutActor, RolloutSetup
from asyncrl.training.interfaces import WeightGroup, WeightManifest

WHO = "the rollout actor"
CLOSE_SECONDS = 20.0


class RolloutHandle:
    """Calls the actor; its exceptions arrive as themselves."""

    def __init__(self, specs: Sequence[PluginSpec], facts: RunFacts) -> None:
        remote = ray.remote(RolloutActor).options(num_cpus=0, max_concurrency=1000)
        self._actor = remote.remote(list(specs), facts)

    async def open_task(self, model: Path, eval_sets: Sequence[str], timeout: float, *, evaluates: bool) -> None:
        await ask(self._actor.open_task.remote(model, tuple(eval_sets), evaluates=evaluates), "the task to open", timeout)

    async def close_task(self) -> None:
        await ask(self._actor.close_task.remote(), WHO, CLOSE_SECONDS)

    async def open(self, setup: RolloutSetup, addresses: Sequence[EngineAddress], timeout: float) -> list[str]:
        return await ask(self._actor.open.remote(setup, list(addresses)), WHO, timeout)

    async def start(self) -> None:
        await ask(self._actor.start.remote(), WHO)

    async def take_batch(self, version: int, step: int) -> Any:
        (batch,) = await ask(self._actor.take_batch.remote(version, step), WHO, told=f"the batch of step {step}")
        return batch

    async def trained(self, step: int) -> None:
        await ask(self._actor.trained.remote(step), WHO)

    async def evaluate(self, checkpoint: Checkpoint) -> EvalResult:
        return await ask(self._actor.evaluate.remote(checkpoint), f"the evaluation of version {checkpoint.version}")

    async def members(self) -> dict[str, int]:
        members: dict[str, int] = await self._weights("members")
        return members

    async def load_from_disk(self, version: int, path: Path, digest: str, mode: PauseMode) -> None:
        await self._weights("load_from_disk", version, path, digest, mode)

    async def join_weight_group(self, group: WeightGroup) -> None:
        await self._weights("join_weight_group", group)

    async def receive(self, version: int, manifest: WeightManifest, mode: PauseMode) -> None:
        await self._weights("receive", version, manifest, mode)

    async def stop_update(self, reason: str) -> None:
        await self._weights("stop_update", reason)

    async def leave_weight_group(self) -> None:
        await self._weights("leave_weight_group")

    async def settle(self) -> None:
        await self._weights("settle")

    async def _weights(self, call: str, *arguments: Any) -> Any:
        return await ask(self._actor.weights.remote(call, *arguments), WHO)

    async def engine_lost(self, name: str, why: str) -> list[str]:
        idle: list[str] = await ask(self._actor.engine_lost.remote(name, why), WHO)
        return idle

    async def engine_back(self, address: EngineAddress) -> None:
        await ask(self._actor.engine_back.remote(address), WHO)

    async def progress(self) -> Progress:
        return await ask(self._actor.progress.remote(), WHO)

    async def restore(self, saved: dict[str, Any], arrays: Arrays) -> None:
        await ask(self._actor.restore.remote(saved, arrays), WHO)

    async def saved(self) -> tuple[dict[str, Any], Arrays, Progress]:
        return await ask(self._actor.saved.remote(), WHO)

    async def close(self, outcome: str) -> dict[str, Any]:
        """Stop generating and return the final books; the actor is ended in any case."""
        try:
            return await ask(self._actor.close.remote(outcome), WHO, CLOSE_SECONDS)
        finally:
            await asyncio.to_thread(ray.kill, self._actor)

"""A whole run under the virtual clock: the real loops, gate, ledger, pool and plugins around scripted engines and a trainer that sleeps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from asyncrl.authoring import RunFacts
from asyncrl.host import Host
from asyncrl.rollout.engine import PauseMode
from asyncrl.rollout.pool import EnginePool
from asyncrl.rollout.service import RolloutService
from asyncrl.simulation.engine import ScriptedEngine
from asyncrl.training.interfaces import StepReport, TrainingBatch
from asyncrl.training.loop import StepTimes, Stop, TrainingLoop


class SimulatedRun:
    """Make and run it on one event loop (`run_virtual`).

    Args:
        train_seconds: time of a step, by its number.
        publish_seconds: for which the engines stand still at a publication.
        pause_mode: how they stand still.
        max_attempts: tries a request has.

    Attributes:
        batches: what was trained, in order.
    """

    def __init__(
        self,
        host: Host,
        facts: RunFacts,
        engines: Sequence[ScriptedEngine],
        *,
        train_seconds: Callable[[int], float] = lambda step: 1.0,
        publish_seconds: float = 0.0,
        pause_mode: PauseMode = "retract",
        max_attempts: int = 4,
        on_unused: str = "drop",
        wait_warning: float = 30.0,
    ) -> None:
        self.facts = facts
        self.engines = engines
        self.pool = EnginePool(engines, max_attempts=max_attempts, health_interval=0)
        self.service = RolloutService(host, self.pool, facts, on_unused=on_unused, wait_warning=wait_warning)
        self.batches: list[TrainingBatch] = []
        self.version = 0
        self._train_seconds = train_seconds
        self._publish_seconds = publish_seconds
        self._pause_mode = pause_mode

    async def run(self) -> None:
        """Train `facts.steps` steps and stop; the books are checked throughout."""
        loop = TrainingLoop(
            steps=self.facts.steps,
            publish_interval=self.facts.publish_interval,
            rollout=self,
            trainer=self,
            publisher=self,
            evals=_NothingDue(),
            checkpoints=_NothingDue(),
            on_step=self._on_step,
            stop=Stop(),
        )
        await self.service.start()
        try:
            await loop.run()
        finally:
            await self.service.stop()

    async def take_batch(self, version: int, step: int) -> TrainingBatch:
        batch, _ = await self.service.take_batch(version, step)
        return batch

    async def train(self, batch: TrainingBatch) -> StepReport:
        await asyncio.sleep(self._train_seconds(batch.step))
        self.batches.append(batch)
        return StepReport(metrics={}, update_norm=1.0, num_tokens=len(batch.token_ids), busy_seconds=0.0)

    async def trained(self, step: int) -> None:
        self.service.trained(step)

    async def publish(self, update_norm: float) -> int:
        """Give every engine the next version."""
        self.version += 1
        for engine in self.engines:
            await engine.pause(self._pause_mode)
        if self._publish_seconds:
            await asyncio.sleep(self._publish_seconds)
        for engine in self.engines:
            engine.publish(self.version)
            await engine.resume()
        self.service.on_published(self.version)
        return self.version

    async def _on_step(self, step: int, report: StepReport, times: StepTimes) -> None:
        self.service.check()


class _NothingDue:
    async def before_training(self, version: int) -> None:
        return None

    async def after_step(self, step: int, version: int = 0, *, lag_steps: int = 0, last: bool) -> None:
        return None

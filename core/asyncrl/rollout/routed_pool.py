"""The pool where a router chooses the engine: waiting, retries and health stay the pool's."""

from __future__ import annotations

import asyncio
from typing import Any

from asyncrl.errors import EngineError, EngineFault
from asyncrl.rollout.client import EngineClient
from asyncrl.rollout.engine import GenerateRequest
from asyncrl.rollout.front import Front
from asyncrl.rollout.pool import EnginePool
from asyncrl.samples import Completion


class RoutedPool(EnginePool):
    """Several engines behind a router as one; satisfies `Generates`.

    Args:
        front: the router.
        engines: those behind it.
        options: of `EnginePool`.
    """

    def __init__(self, front: Front, engines: list[EngineClient], **options: Any) -> None:
        super().__init__(engines, **options)
        self._front = front
        self._clients = engines
        self._looking: asyncio.Task[None] | None = None

    async def _send(self, request: GenerateRequest, avoid: int) -> tuple[int, Completion | EngineFault]:
        """Send a request once. After a failure, engines at whose address nothing answers are left out first."""
        if self._loads.choose(request.affinity) < 0:
            await self._wait_for_one(request.affinity)
        outcome: Completion | EngineFault
        try:
            outcome = await self._front.generate(request)
            if outcome.finish_reason != "abort":
                return -1, outcome
            outcome = EngineFault("it was given up with a request in flight", origin=self._front.name)
        except EngineFault as fault:
            outcome = fault
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._leave_out_the_dead())
        await asyncio.shield(self._looking)
        return -1, outcome

    async def _leave_out_the_dead(self) -> None:
        await asyncio.gather(*(self._bury_if_gone(engine) for engine in self._clients if engine.alive))
        await self._front.leave_out()

    async def _bury_if_gone(self, engine: EngineClient) -> None:
        try:
            await engine.look()
        except EngineError as error:
            if isinstance(error, EngineFault) and error.unreachable:
                self.bury(engine, str(error))

"""The engines of an eval backend's own in the controller: started beside the run, looked at before each point, started again if need be."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from asyncrl.errors import AsyncrlError, EvalSkip
from asyncrl.rollout.engine import EnginePlace
from asyncrl.runtime.cluster import Cluster, ask
from asyncrl.runtime.engine_actor import EngineActor, EngineAddress, EngineJob
from asyncrl.runtime.eval_plan import EvalEnginePlan

log = logging.getLogger("asyncrl")
LOOK_SECONDS = 15.0
STOP_SECONDS = 15.0
SPARE_SECONDS = 5.0
"""How much longer than the server's own deadline its actor may take to tell."""


class EvalEngines:
    """Runs what a plan says; nothing that goes wrong here ever ends a run.

    Args:
        cluster: its last bundles are for these engines, if it places them.
        model: what the servers start with; each point loads its own weights.
        bind: address to which servers are bound.
        api_key: what they require; '' for nothing.
        timeout: seconds in which each must have started.
    """

    def __init__(
        self, plan: EvalEnginePlan, cluster: Cluster, *, model: Path, bind: str, api_key: str, log_dir: Path, timeout: float
    ) -> None:
        first_bundle = cluster.num_bundles - len(plan.needs)
        self._servers = [
            _Server(
                _actor_maker(plan, cluster, first_bundle + index),
                engine_job(plan, index, model, bind, api_key, log_dir),
                plan,
                timeout,
            )
            for index in range(plan.engines.count)
        ]

    def start(self) -> None:
        """Begin to start every server."""
        for server in self._servers:
            server.begin()

    async def ready(self) -> list[EngineAddress]:
        """Return the addresses once every server is healthy; those that are not are ended and started again, once.

        Raises:
            EvalSkip: ``unhealthy``, with the last log lines of what does not come up.
        """
        answers = await asyncio.gather(*(server.ready() for server in self._servers), return_exceptions=True)
        if causes := [answer for answer in answers if isinstance(answer, AsyncrlError)]:
            raise EvalSkip(f"unhealthy: {'; '.join(cause.message for cause in causes)}")
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [answer for answer in answers if isinstance(answer, EngineAddress)]

    async def log_tails(self) -> str:
        """Return the last log lines of each server that has ended."""
        return "\n".join(filter(None, await asyncio.gather(*(server.tail() for server in self._servers))))

    async def close(self) -> None:
        """End every server that was started; actors that do not answer in time are killed, and their servers end with them."""
        await asyncio.gather(*(server.close() for server in self._servers))


class _Server:
    def __init__(self, make_actor: Callable[[], Any], job: EngineJob, plan: EvalEnginePlan, timeout: float) -> None:
        self._make_actor = make_actor
        self._job = job
        self._comparable = plan.comparable
        self._timeout = timeout
        self._actor: Any = None
        self._starting: asyncio.Task[EngineAddress] | None = None
        self._address: EngineAddress | None = None

    def begin(self) -> None:
        """Start it, or start it again."""
        self._address = None
        self._starting = asyncio.ensure_future(self._start())
        self._starting.add_done_callback(lambda task: task.cancelled() or task.exception())  # told at the next point

    async def ready(self) -> EngineAddress:
        """Return its address once it is healthy. Raises `AsyncrlError`."""
        first = self._starting is not None
        if self._starting is not None:
            with contextlib.suppress(AsyncrlError):
                self._address = await asyncio.shield(self._starting)
            self._starting = None
        if self._address is not None and (first or await self._healthy()):
            return self._address
        if self._job.url:
            return await self._look_again()
        log.warning(
            "%s is started again: its server %s", self._job.name, "did not start" if first else "ended or does not answer"
        )
        self.begin()
        assert self._starting is not None
        try:
            self._address = await asyncio.shield(self._starting)
        finally:
            self._starting = self._starting if not self._starting.done() else None
        return self._address

    async def tail(self) -> str:
        if self._actor is None or self._job.url:
            return ""
        with contextlib.suppress(AsyncrlError):
            if not await ask(self._actor.running.remote(), self._job.name, LOOK_SECONDS):
                lines: str = await ask(self._actor.log_tail.remote(), self._job.name, LOOK_SECONDS)
                return f"{self._job.name} ended:\n{lines}"
        return ""

    async def close(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        if self._actor is None:
            return
        try:
            with contextlib.suppress(AsyncrlError):
                await ask(self._actor.stop.remote(), self._job.name, STOP_SECONDS)
        finally:
            await asyncio.to_thread(ray.kill, self._actor)

    async def _start(self) -> EngineAddress:
        if self._actor is None or not await self._actor_lives():
            self._actor = self._make_actor()
        started = self._actor.start.remote(self._job)
        address: EngineAddress = await ask(started, f"{self._job.name} to start", self._timeout + SPARE_SECONDS)
        return address if self._comparable else replace(address, spec=replace(address.spec, comparable_digest=False))

    async def _actor_lives(self) -> bool:
        try:
            await ask(self._actor.running.remote(), self._job.name, LOOK_SECONDS)
        except AsyncrlError:
            with contextlib.suppress(Exception):
                await asyncio.to_thread(ray.kill, self._actor)
            return False
        return True

    async def _healthy(self) -> bool:
        try:
            return await ask(self._actor.healthy.remote(), self._job.name, LOOK_SECONDS)
        except AsyncrlError:
            return False

    async def _look_again(self) -> EngineAddress:
        """A server that others run is not waited for a second time: it is there, or the point is skipped."""
        if self._address is None:
            job = replace(self._job, patience=LOOK_SECONDS)
            address: EngineAddress = await ask(self._actor.start.remote(job), self._job.name, LOOK_SECONDS + SPARE_SECONDS)
            self._address = address
            return address
        raise EvalSkip(f"the server at {self._job.url} does not answer")


def engine_job(plan: EvalEnginePlan, index: int, model: Path, bind: str, api_key: str, log_dir: Path) -> EngineJob:
    """Return how one of the planned engines is run."""
    name = f"eval-engine-{index}"
    place = EnginePlace(
        index=index,
        model=model,
        host=bind,
        port=0,
        device=plan.facts.device,
        dtype=plan.facts.dtype,
        seed=plan.facts.seed + index,
        log_file=log_dir / f"{name}.txt",
        api_key=api_key,
    )
    engines = plan.engines
    return EngineJob(name, place, engines.launch, engines.urls[index] if engines.urls else "", engines.api_key)


def _actor_maker(plan: EvalEnginePlan, cluster: Cluster, bundle: int) -> Callable[[], Any]:
    def make() -> Any:
        where = cluster.place(bundle) if plan.needs else cluster.here()
        return ray.remote(EngineActor).options(**where).remote([plan.spec], plan.facts)

    return make

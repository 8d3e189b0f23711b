"""The rollout engines: an actor and its server each, started side by side, started again one by one, stopped side by side."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from asyncrl.authoring import RunFacts
from asyncrl.errors import AsyncrlError, DeadlineExceeded
from asyncrl.plugins import PluginSpec
from asyncrl.rollout.engine import EnginePlace
from asyncrl.runtime.cluster import Cluster, ask, placed
from asyncrl.runtime.engine_actor import EngineActor, EngineAddress, EngineJob
from asyncrl.runtime.last_words import last_lines
from asyncrl.runtime.supervisor import Look

STOP_SECONDS = 15.0
SPARE_SECONDS = 15.0
"""The actor, which knows more of the server, gives up first where both have the same patience."""
LOOK_SECONDS = 15.0
LINES = 12


class EngineGroup:
    """All rollout engines of a run; engine i sits in bundle `first_bundle + i`.

    Attributes:
        servers: one an engine, once they were started.
    """

    def __init__(self, cluster: Cluster, first_bundle: int, specs: Sequence[PluginSpec], facts: RunFacts) -> None:
        self._facts = facts
        remote = ray.remote(EngineActor)
        self._makers = [
            _maker(remote.options(**cluster.place(first_bundle + index)), list(specs), facts)
            for index in range(facts.num_engines)
        ]
        self.servers: list[EngineServer] = []

    async def start(
        self, model: Path, *, restart_model: Path, bind: str, api_key: str, base_port: int, log_dir: Path, timeout: float
    ) -> list[EngineAddress]:
        """Start every server and wait until all are healthy.

        Args:
            restart_model: with which a server starts later: a checkpoint may be gone by then.
            api_key: what they require; '' for nothing.
        """
        places = [
            EnginePlace(
                index=index,
                model=model,
                host=bind,
                port=base_port + index if base_port else 0,
                device=self._facts.device,
                dtype=self._facts.dtype,
                seed=self._facts.seed + index,
                log_file=log_dir / f"engine-{index}.txt",
                api_key=api_key,
            )
            for index in range(len(self._makers))
        ]
        self.servers = [
            EngineServer(EngineJob(f"engine-{place.index}", place), make, timeout, restart_model)
            for place, make in zip(places, self._makers, strict=True)
        ]
        return list(await asyncio.gather(*(server.start() for server in self.servers)))

    def addresses(self) -> list[EngineAddress]:
        """Return where each engine answers, or did at last."""
        return [server.address for server in self.servers]

    async def log_tails(self) -> str:
        """Return the last log lines of each engine whose server has ended."""
        return "\n".join(filter(None, await asyncio.gather(*(server.tail() for server in self.servers))))

    async def stop(self) -> None:
        """End every server; actors that do not answer in time are killed, and their servers end with them."""
        await asyncio.gather(*(server.stop() for server in self.servers))


class EngineServer:
    """One engine's server and the actor that owns it; both can be started again.

    Attributes:
        address: where it answers, or did at last, once it was started.

    Args:
        make_actor: returns a new actor in the engine's place.
        timeout: seconds in which it must have started.
        restart_model: with which it is started again.
    """

    def __init__(self, job: EngineJob, make_actor: Callable[[], Any], timeout: float, restart_model: Path) -> None:
        self.name = job.name
        self._job = job
        self._make_actor = make_actor
        self._timeout = timeout
        self._restart_model = restart_model
        self._actor: Any = make_actor()
        self._started = False
        self._adrift = False  # its actor is in the middle of a start that nobody waits for any more

    async def start(self) -> EngineAddress:
        """Start the server, after ending what is left of a former one; an actor that is gone or does not answer is replaced.

        Raises:
            AsyncrlError: it did not start; the message carries its last words.
        """
        if self._started:
            self._job = replace(self._job, place=replace(self._job.place, model=self._restart_model))
            if await self._state() in ("dead", "silent"):
                await asyncio.to_thread(ray.kill, self._actor)
                self._actor = self._make_actor()
                self._adrift = False
        self._started = True
        self._actor = await placed(self._actor, self._make_actor, self.name, self._timeout)
        try:
            self.address: EngineAddress = await ask(self._actor.start.remote(self._job), self.name, self._timeout + SPARE_SECONDS)
        except asyncio.CancelledError:
            self._adrift = True
            raise
        except DeadlineExceeded as late:
            self._adrift = True
            raise DeadlineExceeded(f"{late.message}; its log ends with\n{await self._last_lines()}") from None
        return self.address

    async def look(self) -> Look:
        """Whether the server answers, does not answer within seconds, or is gone."""
        state = await self._state()
        if state != "running":
            return "silent" if state == "silent" else "dead"
        try:
            return "well" if await ask(self._actor.healthy.remote(), self.name, LOOK_SECONDS) else "silent"
        except AsyncrlError:
            return "silent"

    async def tail(self) -> str:
        """Return the server's last log lines if it has ended, else ''."""
        if await self._state() == "running":
            return ""
        return f"{self.name} ended:\n{await self._last_lines()}"

    async def stop(self) -> None:
        """End server and actor."""
        try:
            with contextlib.suppress(AsyncrlError):
                await ask(self._actor.stop.remote(), self.name, STOP_SECONDS)
        finally:
            ray.kill(self._actor)

    async def _last_lines(self) -> str:
        return await asyncio.to_thread(last_lines, self._job.place.log_file, LINES)

    async def _state(self) -> str:
        """``running`` and ``ended`` are the server's, ``silent`` and ``dead`` its actor's."""
        if self._adrift:
            return "dead"
        try:
            return "running" if await ask(self._actor.running.remote(), self.name, LOOK_SECONDS) else "ended"
        except DeadlineExceeded:
            return "silent"
        except AsyncrlError:
            return "dead"


def _maker(remote: Any, specs: list[PluginSpec], facts: RunFacts) -> Callable[[], Any]:
    return lambda: remote.remote(specs, facts)

"""A router in front of the engines: generation goes to it, and it sends to those engines that live and to no other.

It speaks the API of SGLang's router (``/generate``, ``/workers``). Control calls never go through it. It is kept to the engines that
live by listing, adding and removing its workers; where that can't be relied on, its process is ended and another one started, because an
engine that was left out must get no request: its weights are old, or half updated.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Protocol

import aiohttp

from asyncrl.errors import EngineError, EngineFault, EnginesLost
from asyncrl.metrics import Axis, Counter, MetricSet
from asyncrl.rollout.client import EngineClient
from asyncrl.rollout.connection import Connection
from asyncrl.rollout.engine import GenerateRequest
from asyncrl.rollout.loads import Load, Usage
from asyncrl.rollout.patience import Wait
from asyncrl.rollout.sender import Sender
from asyncrl.samples import Completion
from asyncrl.scrub import hide

log = logging.getLogger("asyncrl")

ROUTING_KEY = "X-SMG-Routing-Key"
CALL_SECONDS = 10.0
LEAVE_SECONDS = 15.0
POLL_SECONDS = 0.05
WATCH_SECONDS = 0.25
LOOK_SECONDS = 2.0
BAD_LOOKS = 3
FIRST_PAUSE = 1.0


class FrontServer(Protocol):
    """The router's process, owned by this one."""

    async def start(self) -> str:
        """Start it and wait until it answers; return its address. Raises `EngineError` with its last words."""
        ...

    def running(self) -> bool: ...

    async def stop(self) -> None:
        """End it, if it runs, and wait until it is gone."""
        ...


class FrontMetrics(MetricSet):
    """Logged as ``engines/…``."""

    router_restarts = Counter("Times the router was started again", unit="restarts", axis=Axis.WALL_SECONDS)


class Front:
    """The router, kept in step with the engines behind it.

    Args:
        engines: kept, not copied: an engine appended later takes part.
        max_restarts: how often it is started again.
        warn_interval: seconds between warnings while requests wait for it.
    """

    name = "router"

    def __init__(
        self,
        server: FrontServer,
        engines: Sequence[EngineClient],
        session: aiohttp.ClientSession,
        *,
        vocab_size: int,
        request_timeout: float,
        max_restarts: int = 3,
        warn_interval: float = 30.0,
    ) -> None:
        self.metrics = FrontMetrics("engines")
        self.alive = False
        self._server = server
        self._engines = engines
        self._connection = Connection(self.name, "", session)
        self._connection.secrets = {engine.api_key for engine in engines if engine.api_key}  # it is told them
        self._sender = Sender(
            self._connection,
            vocab_size=vocab_size,
            request_timeout=request_timeout,
            takes_seeds=all(engine.takes_seeds for engine in engines),
            abort=self._abort,
        )
        self._max_restarts = max_restarts
        self._restarts = 0
        self._why = ""
        self._failure: EnginesLost | None = None
        self._workers: dict[str, str] = {}  # ids of those that get requests, by address
        self._joining: dict[str, str] = {}  # likewise of those that were added and get none yet
        self._open = asyncio.Event()  # requests can be sent, or never again
        self._lock = asyncio.Lock()
        self._looked_at = float("-inf")
        self._wait = Wait(warn_interval, self._warn, lambda: f"the router, which {self._state()}")
        self._waiting = 0
        self._watch: asyncio.Task[None] | None = None

    @property
    def busy_seconds(self) -> float:
        """Seconds so far with at least one request in flight."""
        return self._sender.busy_seconds

    @property
    def usage(self) -> Usage:
        """Tokens of the prompts that were answered, by whichever engine."""
        return self._sender.usage

    async def load(self) -> Load | None:
        """The engines tell theirs themselves."""
        return None

    async def start(self, timeout: float) -> None:
        """Start the router; return once every engine takes requests through it.

        Raises:
            EngineError: it did not start, or does not take an engine within `timeout` seconds.
        """
        await self._begin()
        deadline = asyncio.get_running_loop().time() + timeout
        while missing := [engine for engine in self._engines if engine.alive and engine.url not in self._workers]:
            if asyncio.get_running_loop().time() > deadline:
                raise EngineError(f"the router did not take {missing[0].name} at {missing[0].url} within {timeout:g} s")
            await self._follow()
            await asyncio.sleep(POLL_SECONDS)
        self._watch = asyncio.get_running_loop().create_task(self._keep_in_step())

    async def generate(self, request: GenerateRequest) -> Completion:
        """Generate once, on whichever engine the router chooses; the same one for requests of one group.

        The request counts as sent under the oldest version that an engine behind the router may have.

        Raises:
            RequestFailed, EngineFault: see `EngineClient.generate`.
            EnginesLost: the router was started again as often as it may be.
        """
        if not self._open.is_set():
            await self._until_open()
        if self._failure is not None:
            raise self._failure
        if self._watch is not None and self._watch.done():
            self._watch.result()  # a bug in it surfaces here
        reached = [engine for engine in self._engines if engine.alive or engine.url in self._workers]
        return await self._sender.send(
            request,
            admitted=min(engine.version for engine in reached or self._engines),
            initial_version=self._engines[0].initial_version,
            cache_key=sum(engine.cache_key for engine in self._engines),  # another one whenever an engine's is
            headers={ROUTING_KEY: str(request.affinity)},
        )

    async def leave_out(self) -> None:
        """Return once no request can reach an engine that is not alive."""
        if not self.alive:  # no request reaches any
            return
        async with self._lock:
            if self.alive:
                try:
                    await self._follow()
                except EngineError as error:
                    await self._give_up(f"engines could not be taken from it: {error.message}")

    async def close(self) -> None:
        """End the router."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        self._wait.end()
        await self._server.stop()

    # Its workers ----------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Have it send to no engines but those that live; add those that it lacks, which takes it a moment."""
        deadline = asyncio.get_running_loop().time() + LEAVE_SECONDS
        while True:
            living = [engine.url for engine in self._engines if engine.alive]
            await self._list()
            if lost := [url for url in self._joining if url not in living]:
                raise EngineFault(f"{lost[0]} was lost while it was being added", origin=self.name)
            leaving = [url for url in self._workers if url not in living]
            if not leaving:
                break
            if asyncio.get_running_loop().time() > deadline:
                raise EngineFault(f"{leaving[0]} was not removed within {LEAVE_SECONDS:g} s", origin=self.name)
            for url in leaving:
                with _unknown_worker():
                    await self._connection.call(f"/workers/{self._workers[url]}", None, CALL_SECONDS, "DELETE")
            await asyncio.sleep(POLL_SECONDS)
        for engine in self._engines:
            if engine.url in living and engine.url not in self._workers and not await self._is_joining(engine.url):
                worker = {"url": engine.url, **({"api_key": engine.api_key} if engine.api_key else {})}
                reply = await self._connection.call("/workers", worker, CALL_SECONDS)
                self._joining[engine.url] = str(reply.get("worker_id"))

    async def _list(self) -> None:
        self._looked_at = asyncio.get_running_loop().time()
        reply = await self._connection.call("/workers", None, CALL_SECONDS, "GET")
        try:
            self._workers = {worker["url"]: worker["id"] for worker in reply["workers"]}
        except (LookupError, TypeError) as cause:
            told = hide(str(reply), self._connection.secrets)
            raise EngineError(f"/workers told no list of workers: {told}", origin=self.name) from cause
        self._joining = {url: number for url, number in self._joining.items() if url not in self._workers}
        if self._workers:
            self._open.set()
        else:
            self._open.clear()

    async def _is_joining(self, url: str) -> bool:
        """Whether an engine that was added may still come; it is added again if not."""
        if url not in self._joining:
            return False
        with _unknown_worker():
            told = await self._connection.call(f"/workers/{self._joining[url]}", None, CALL_SECONDS, "GET")
            return bool(told.get("job_status", {}).get("status") != "failed")
        del self._joining[url]
        return False

    # Its process ----------------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        self._connection.url = await self._server.start()
        self.alive = True

    async def _keep_in_step(self) -> None:
        bad_looks = 0
        while self._failure is None:
            await asyncio.sleep(WATCH_SECONDS)
            async with self._lock:
                if not self.alive:
                    await self._begin_again()
                    bad_looks = 0
                elif not self._server.running():
                    await self._give_up("its process ended")
                elif self._due():
                    try:
                        await self._follow()
                        bad_looks = 0
                    except EngineError as error:
                        bad_looks += 1
                        if bad_looks == BAD_LOOKS:
                            await self._give_up(str(error))

    def _due(self) -> bool:
        """Whether it is time to look: something changed, or nothing was looked at for a while."""
        changed = self._workers.keys() != {engine.url for engine in self._engines if engine.alive}
        return changed or asyncio.get_running_loop().time() - self._looked_at >= LOOK_SECONDS

    async def _give_up(self, why: str) -> None:
        """End its process: what is in flight through it fails, and is sent again through the next one."""
        log.warning("the router is given up: %s", why)
        self._why = why
        self._open.clear()
        await self._server.stop()
        self._workers, self._joining = {}, {}
        self.alive = False

    async def _begin_again(self) -> None:
        if self._restarts >= self._max_restarts:
            self._failure = EnginesLost(
                f"the router in front of the engines is gone, and was started again {self._restarts} times "
                f"(max_engine_restarts): {self._why}"
            )
            self._open.set()
            return
        pause = FIRST_PAUSE * 4**self._restarts if self._restarts else 0.0
        self._restarts += 1
        log.warning("the router is started again (%d of at most %d times)", self._restarts, self._max_restarts)
        self.metrics.router_restarts.add()
        await asyncio.sleep(pause)
        try:
            await self._begin()
        except EngineError as error:
            self._why = error.message

    # Requests -------------------------------------------------------------------------------------------------------

    async def _until_open(self) -> None:
        self._waiting += 1
        self._wait.begin()
        try:
            await self._open.wait()
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._wait.end()

    def _state(self) -> str:
        return "has no engine that lives" if self.alive else "is being started again"

    def _warn(self, seconds: float) -> None:
        log.warning("%d requests wait for the router, which %s (%.0f s)", self._waiting, self._state(), seconds)

    def _abort(self, rid: str) -> None:
        """Whichever engine has the request ends it; the others don't know it."""
        for engine in self._engines:
            if engine.alive:
                engine.abort(rid)


@contextlib.contextmanager
def _unknown_worker() -> Iterator[None]:
    """Let pass what a router answers about a worker that it does not know, or no longer."""
    try:
        yield
    except EngineFault:
        raise
    except EngineError:
        pass

"""Routes requests over engines: the fewest in flight first, transient failures tried again elsewhere, dead engines left out."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence

from asyncrl.errors import EngineFault, EnginesLost, RequestFailed
from asyncrl.metrics import Axis, Counter, Gauge, MetricSet
from asyncrl.rollout.engine import Engine, GenerateRequest
from asyncrl.rollout.least_loaded import LeastLoaded
from asyncrl.samples import Completion

log = logging.getLogger("asyncrl")

LONGEST_BACKOFF = 5.0
POLL = 0.1


class PoolMetrics(MetricSet):
    """Logged as ``engines/…``."""

    retries = Counter("Requests tried again after a transient engine failure", unit="requests", axis=Axis.WALL_SECONDS)
    failures = Counter("Requests that failed for good", unit="requests", axis=Axis.WALL_SECONDS)
    deaths = Counter("Times an engine was declared dead", unit="engines", axis=Axis.WALL_SECONDS, label="engine")
    alive = Gauge("Engines that take requests", unit="engines", axis=Axis.WALL_SECONDS)


class EnginePool:
    """Several engines as one; satisfies `Generates`.

    An engine is dead once nothing answers at its address or it fails `health_failures` looks in a row. A dead one that is healthy
    again, which includes that it serves the weights it should, gets requests again.

    Args:
        engines: kept, not copied: an engine appended later takes part.
        max_attempts: tries a request has in all.
        backoff: seconds before the second try; doubled for each further one, at most 5 s, less a random part.
        lost_timeout: seconds a request waits for a live engine before it ends with `EnginesLost`.
        warn_interval: seconds between warnings while none lives.
        health_interval: seconds between two looks at each engine; 0 for no looks.
        health_failures: bad looks in a row after which an engine is dead.
        seed: of the random part of the backoff; None for one that differs from run to run.
        lost_remedy: what somebody can do about `EnginesLost`.
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        *,
        max_attempts: int = 4,
        backoff: float = 0.25,
        lost_timeout: float = 300.0,
        warn_interval: float = 30.0,
        health_interval: float = 2.0,
        health_failures: int = 3,
        seed: int | None = None,
        lost_remedy: str = "see the engines' log files",
    ) -> None:
        self.engines = engines
        self.metrics = PoolMetrics("engines")
        self._max_attempts = max_attempts
        self._backoff = backoff
        self._lost_timeout = lost_timeout
        self._lost_remedy = lost_remedy
        self._warn_interval = warn_interval
        self._health_interval = health_interval
        self._health_failures = health_failures
        self._loads = LeastLoaded(engines)
        self._random = random.Random(seed)
        self._bad_looks: dict[str, int] = {}
        self._monitor: asyncio.Task[None] | None = None
        self._warned_at = float("-inf")

    async def generate(self, request: GenerateRequest) -> Completion:
        """Generate on the live engine with the fewest requests in flight. Among equals, one that a group's requests agree on, so that its
        prefix is computed once where load allows; after a failure on another one, if another lives.

        Raises:
            RequestFailed: the request is wrong, or failed `max_attempts` times.
            EnginesLost: no engine lived for `lost_timeout` seconds.
        """
        self._keep_watching()
        failed_at = -1
        attempt = 1
        while True:
            failed_at, outcome = await self._send(request, failed_at)
            if isinstance(outcome, Completion):
                return outcome
            if attempt == self._max_attempts:
                self.metrics.failures.add()
                raise RequestFailed(f"a request failed {attempt} times, at last with: {outcome}") from outcome
            self.metrics.retries.add()
            delay = min(LONGEST_BACKOFF, self._backoff * 2 ** (attempt - 1))
            await asyncio.sleep(delay * self._random.uniform(0.5, 1.0))
            attempt += 1

    async def look(self) -> None:
        """Look at every engine once, as the health monitor does."""
        await asyncio.gather(*(self._look(engine) for engine in self.engines))
        self.metrics.alive.set(sum(engine.alive for engine in self.engines))

    async def close(self) -> None:
        """End the health monitor."""
        if self._monitor is not None:
            self._monitor.cancel()
            await asyncio.gather(self._monitor, return_exceptions=True)
            self._monitor = None

    async def _send(self, request: GenerateRequest, avoid: int) -> tuple[int, Completion | EngineFault]:
        """Send a request once, not to the engine at place `avoid` if another lives; return the place, and what came of it."""
        loads = self._loads
        place = loads.choose(request.affinity, avoid)
        if place < 0:
            place = await self._wait_for_one(request.affinity)
        engine = self.engines[place]
        loads.starts(place)
        outcome: Completion | EngineFault
        try:
            outcome = await engine.generate(request)
            if outcome.finish_reason == "abort" and not engine.alive:
                outcome = EngineFault("it was given up with a request in flight", origin=engine.name)
        except EngineFault as fault:
            outcome = fault
        finally:
            loads.changed(place)
        if isinstance(outcome, EngineFault) and outcome.unreachable:
            self.bury(engine, str(outcome))
        return place, outcome

    async def _wait_for_one(self, affinity: int) -> int:
        """Return the place of an engine as soon as one lives."""
        clock = asyncio.get_running_loop().time
        started = clock()
        while (place := self._loads.choose(affinity)) < 0:
            names = ", ".join(engine.name for engine in self.engines)
            waited = clock() - started
            if waited >= self._lost_timeout:
                raise EnginesLost(f"no engine is alive, for {waited:.0f} s now: {names}", remedy=self._lost_remedy)
            if clock() - self._warned_at >= self._warn_interval:
                self._warned_at = clock()
                log.warning("no engine is alive; requests wait for one of %s to come back (%.0f s)", names, waited)
            await asyncio.sleep(POLL)
        return place

    def _keep_watching(self) -> None:
        if self._monitor is None and self._health_interval > 0:
            self._monitor = asyncio.get_running_loop().create_task(self._watch())
        elif self._monitor is not None and self._monitor.done():
            self._monitor.result()  # a bug in a health check surfaces here

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._health_interval)
            await self.look()

    async def _look(self, engine: Engine) -> None:
        if await engine.healthy():
            self._bad_looks[engine.name] = 0
            if not engine.alive:
                engine.alive = True
                log.warning("%s is back and takes requests again", engine.name)
            return
        bad = self._bad_looks[engine.name] = self._bad_looks.get(engine.name, 0) + 1
        if bad >= self._health_failures:
            self.bury(engine, f"it failed {bad} health checks in a row")

    def bury(self, engine: Engine, why: str) -> None:
        """Send it no requests until it is healthy."""
        if engine.alive:
            engine.alive = False
            self.metrics.deaths.add(1, engine.name)
            log.warning("%s is dead and gets no requests until it is healthy again: %s", engine.name, why)

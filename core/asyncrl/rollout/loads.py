"""How loaded the engines are, as their servers say themselves: per engine, and all together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from asyncrl.errors import EngineError
from asyncrl.metrics import Axis, Gauge, MetricSet

TOGETHER = "all"
LOOK_SECONDS = 5.0


@dataclass
class Usage:
    """Tokens of prompts that were answered, and how many of them came from the server's prefix cache. Counts up."""

    prompt_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True)
class Load:
    """What a server says of itself. `generated_tokens` counts up; `tokens_per_second` is None where it says no rate."""

    running: int
    waiting: int
    tokens_per_second: float | None = None
    generated_tokens: int | None = None


class Loaded(Protocol):
    """An engine that can be asked."""

    name: str
    alive: bool

    @property
    def usage(self) -> Usage:
        """Tokens of the prompts that it answered."""
        ...

    async def load(self) -> Load | None:
        """None where the server doesn't tell. Raises `EngineError`."""
        ...


class LoadMetrics(MetricSet):
    """Logged as ``engines/…``, each for every engine and for `all`."""

    running = Gauge("Requests that generate, as the server says", unit="requests", axis=Axis.WALL_SECONDS, label="engine")
    waiting = Gauge("Requests that wait in the server", unit="requests", axis=Axis.WALL_SECONDS, label="engine")
    tokens_per_second = Gauge("Tokens generated, as the server says", unit="tokens/s", axis=Axis.WALL_SECONDS, label="engine")
    cache_hit_rate = Gauge(
        "Part of the prompts' tokens that the server took from its prefix cache, of answers since the last look",
        unit="ratio",
        axis=Axis.WALL_SECONDS,
        label="engine",
    )


class EngineLoads:
    """Looks at the engines every few seconds. `engines` is kept, not copied."""

    def __init__(self, engines: Sequence[Loaded], *, interval: float = LOOK_SECONDS) -> None:
        self.metrics = LoadMetrics("engines")
        self._engines = engines
        self._interval = interval
        self._before: dict[str, tuple[float, Load]] = {}
        self._usage: dict[str, Usage] = {}
        self._watch: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._watch = asyncio.get_running_loop().create_task(self._forever())

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)

    async def look(self) -> None:
        """Ask every engine that lives once, and set the metrics of those that answer."""
        engines = [engine for engine in self._engines if engine.alive]
        loads = [load for load in await asyncio.gather(*map(self._ask, engines)) if load]
        self._set(self.metrics.running, [(name, load.running) for name, load, _ in loads])
        self._set(self.metrics.waiting, [(name, load.waiting) for name, load, _ in loads])
        self._set(self.metrics.tokens_per_second, [(name, rate) for name, _, rate in loads if rate is not None])
        self._hits()

    async def _ask(self, engine: Loaded) -> tuple[str, Load, float | None] | None:
        try:
            load = await engine.load()
        except EngineError:  # the health monitor says so
            return None
        if load is None:
            return None
        now, rate = time.monotonic(), load.tokens_per_second
        if load.generated_tokens is not None:
            then, before = self._before.get(engine.name, (now, load))
            made = load.generated_tokens - (before.generated_tokens or 0)
            rate = max(0, made) / (now - then) if now > then else None
            self._before[engine.name] = (now, load)
        return engine.name, load, rate

    def _set(self, gauge: Gauge, values: Sequence[tuple[str, float]]) -> None:
        for name, value in values:
            gauge.set(value, name)
        if values:
            gauge.set(sum(value for _, value in values), TOGETHER)

    def _hits(self) -> None:
        prompts = cached = 0
        for engine in self._engines:
            before, now = self._usage.get(engine.name, Usage()), engine.usage
            new, hit = now.prompt_tokens - before.prompt_tokens, now.cached_tokens - before.cached_tokens
            self._usage[engine.name] = Usage(now.prompt_tokens, now.cached_tokens)
            if new:
                self.metrics.cache_hit_rate.set(hit / new, engine.name)
            prompts, cached = prompts + new, cached + hit
        if prompts:
            self.metrics.cache_hit_rate.set(cached / prompts, TOGETHER)

    async def _forever(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(self._interval)


def read_load(reply: Mapping[str, Any]) -> Load:
    """Return the load in the answer of ``/v1/loads``, over all data parallel ranks.

    Raises:
        KeyError, TypeError, ValueError: it says something else.
    """
    ranks = reply["loads"]
    rates = [float(rank["gen_throughput"]) for rank in ranks if "gen_throughput" in rank]
    counts = [int(rank["generated_tokens"]) for rank in ranks if "generated_tokens" in rank]
    return Load(
        running=sum(int(rank["num_running_reqs"]) for rank in ranks),
        waiting=sum(int(rank["num_waiting_reqs"]) for rank in ranks),
        tokens_per_second=sum(rates) if rates else None,
        generated_tokens=sum(counts) if counts else None,
    )

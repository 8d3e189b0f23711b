"""An engine with exact latencies, versions and faults, for the loops under the virtual clock."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from asyncrl.errors import EngineFault
from asyncrl.rollout.engine import GenerateRequest, PauseMode, WeightBucket
from asyncrl.samples import Completion, merge_spans

Fault = Literal["", "error", "hang", "death", "abort"]


@dataclass(frozen=True)
class Plan:
    """How one request goes.

    Attributes:
        tokens: tokens it generates.
        first: seconds until generation begins, and again after a pause that retracts it.
        per_token: seconds a token.
        fault: ``error`` answers with an error, ``hang`` never answers, ``death`` takes the whole engine down, ``abort`` gives up with
            what is there; each after `fault_after` tokens.
        finish_reason: ``stop`` or ``length``.
    """

    tokens: int = 8
    first: float = 0.0
    per_token: float = 0.125
    fault: Fault = ""
    fault_after: int = 0
    finish_reason: str = "stop"


class _Request:
    """A request in a slot: `produced` tokens since its admission, `progress` seconds towards the next one."""

    def __init__(
        self, prompt: GenerateRequest, plan: Plan, number: int, answer: asyncio.Future[Completion], version: int
    ) -> None:
        self.prompt = prompt
        self.plan = plan
        self.number = number
        self.answer = answer
        self.admitted = version
        self.spans: list[tuple[int, int]] = []
        self.produced = 0
        self.progress = -plan.first
        self.since = 0.0
        self.timer: asyncio.TimerHandle | None = None

    @property
    def last(self) -> int:
        """Tokens after which it ends, one way or another."""
        return min(self.plan.fault_after, self.plan.tokens) if self.plan.fault else self.plan.tokens


class ScriptedEngine:
    """Satisfies `Engine`. Token i of a request is generated at an exact moment, by the version served at that moment.

    Args:
        slots: requests that generate at once; others queue in order.
        script: called as ``script(request, number)`` when a request comes in, `number` counting from 0 over the engine's life.
        vocab_size: bound on the token ids.
        request_timeout: seconds after which a request that hangs raises `EngineFault`.

    Attributes:
        most_in_flight: highest number of requests there ever were at once, queued ones included.
        slowdown: factor on the time of every token from now on.
    """

    def __init__(
        self,
        name: str = "scripted",
        *,
        slots: int = 64,
        script: Callable[[GenerateRequest, int], Plan] = lambda request, number: Plan(),
        vocab_size: int = 64,
        request_timeout: float = 600.0,
    ) -> None:
        self.name = name
        self.version = 0
        self.in_flight = 0
        self.alive = True
        self.most_in_flight = 0
        self.slowdown = 1.0
        self.requests = 0
        self._slots = slots
        self._script = script
        self._vocab_size = vocab_size
        self._request_timeout = request_timeout
        self._running: dict[_Request, None] = {}
        self._queue: deque[_Request] = deque()
        self._paused: PauseMode | None = None
        self._dead = False
        self._busy = 0.0
        self._busy_since = 0.0

    @property
    def busy_seconds(self) -> float:
        return self._busy + (self._now() - self._busy_since if self.in_flight else 0.0)

    @property
    def paused(self) -> bool:
        return self._paused is not None

    async def generate(self, request: GenerateRequest) -> Completion:
        """Generate as the script says. Raises `EngineFault` for a scripted error, a death, or a hang that outlasts the timeout."""
        if self._dead:
            raise self._fault("it is dead", unreachable=True)
        plan = self._script(request, self.requests)
        answer: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        running = _Request(request, plan, self.requests, answer, self.version)
        self.requests += 1
        self._enter()
        self._queue.append(running)
        self._admit()
        try:
            async with asyncio.timeout(self._request_timeout):
                return await answer
        except TimeoutError:
            raise self._fault(f"a request got no answer for {self._request_timeout:g} s") from None
        finally:
            self._leave(running)

    async def pause(self, mode: PauseMode) -> None:
        """Stop between two tokens. After `retract` each request begins anew with its `first` seconds, its tokens kept."""
        self._settle_all()
        self._paused = mode
        for request in self._running:
            self._disarm(request)

    async def resume(self) -> None:
        mode, self._paused = self._paused, None
        for request in self._running:
            if mode == "retract":
                request.progress = -request.plan.first
            request.since = self._now()
            self._arm(request)
        self._admit()

    def publish(self, version: int) -> None:
        """Count as `version` from the next token on, whether paused or not."""
        self._settle_all()
        self.version = version

    def die(self) -> None:
        """Go down with everything in flight."""
        self._dead, self.alive = True, False
        for request in [*self._running, *self._queue]:
            self._answer(request, error=self._fault("the connection was lost", unreachable=True))

    def revive(self) -> None:
        """Come back, under the weights it had; whoever routes to it finds out by `healthy`."""
        self._dead = False

    async def load_from_disk(self, path: Path, version: int, *, flush_cache: bool) -> None:
        self.publish(version)

    async def join_weight_group(self, *, address: str, port: int, rank: int, world_size: int, name: str, backend: str) -> None:
        return None

    async def leave_weight_group(self, name: str) -> None:
        return None

    async def begin_update(self) -> None:
        return None

    async def receive_bucket(self, bucket: WeightBucket, *, group: str, version: int, flush_cache: bool) -> None:
        self.publish(version)

    async def end_update(self) -> None:
        return None

    async def digest(self) -> str:
        return f"weights of version {self.version}"

    async def flush_cache(self) -> None:
        return None

    async def healthy(self) -> bool:
        return not self._dead

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _enter(self) -> None:
        if not self.in_flight:
            self._busy_since = self._now()
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)

    def _leave(self, request: _Request) -> None:
        self._disarm(request)
        if request in self._running:
            del self._running[request]
        elif request in self._queue:
            self._queue.remove(request)
        self.in_flight -= 1
        if not self.in_flight:
            self._busy += self._now() - self._busy_since
        self._admit()

    def _admit(self) -> None:
        while self._queue and len(self._running) < self._slots and self._paused is None and not self._dead:
            request = self._queue.popleft()
            self._running[request] = None
            request.admitted = self.version
            request.since = self._now()
            self._arm(request)

    def _arm(self, request: _Request) -> None:
        """Set the timer to the moment at which the request ends."""
        if request.plan.fault == "hang" and request.produced >= request.last:
            return
        missing = (request.last - request.produced) * request.plan.per_token * self.slowdown
        loop = asyncio.get_running_loop()
        request.timer = loop.call_later(max(0.0, missing - request.progress), self._end, request)

    def _disarm(self, request: _Request) -> None:
        if request.timer is not None:
            request.timer.cancel()
            request.timer = None

    def _settle_all(self) -> None:
        for request in self._running:
            if request.timer is not None:
                self._settle(request)

    def _settle(self, request: _Request) -> None:
        """Credit the tokens generated since the last look to the version that is served."""
        now = self._now()
        request.progress += now - request.since
        request.since = now
        pace = request.plan.per_token * self.slowdown
        ready = request.last - request.produced
        if pace > 0 and request.progress >= 0:
            ready = min(ready, math.floor(request.progress / pace + 1e-6))
        elif request.progress < 0:
            ready = 0
        request.spans.append((self.version, ready))
        request.produced += ready
        request.progress -= ready * pace

    def _end(self, request: _Request) -> None:
        self._settle(request)
        ready = request.last - request.produced
        request.spans.append((self.version, ready))  # what rounding left
        request.produced += ready
        fault = request.plan.fault
        request.timer = None
        if fault == "error":
            self._answer(request, error=self._fault("it answered 500"))
        elif fault == "death":
            self.die()
        elif fault != "hang":
            self._answer(request)

    def _answer(self, request: _Request, error: EngineFault | None = None) -> None:
        if request.answer.done():
            return
        if error is not None:
            request.answer.set_exception(error)
            return
        count = request.produced
        start = request.prompt.affinity * 31 + request.number
        request.answer.set_result(
            Completion(
                token_ids=((start + np.arange(count)) % self._vocab_size).astype(np.int32),
                logprobs=np.full(count, -1.0, np.float32),
                spans=merge_spans(request.spans),
                finish_reason="abort" if request.plan.fault == "abort" else request.plan.finish_reason,
                admitted=request.admitted,
            )
        )

    def _fault(self, message: str, *, unreachable: bool = False) -> EngineFault:
        error = EngineFault(message, origin=self.name)
        error.unreachable = unreachable
        return error

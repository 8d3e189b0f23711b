"""An engine with exact latencies, versions and faults, for the loops under the virtual clock."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from pathlib import Path

from asyncrl.errors import EngineFault
from asyncrl.rollout.engine import GenerateRequest, PauseMode, WeightBucket
from asyncrl.samples import Completion, Spans
from asyncrl.simulation.answers import answers
from asyncrl.simulation.request import Request
from asyncrl.simulation.script import Fault, NumberedRequest, Plan

__all__ = ["Fault", "Plan", "ScriptedEngine"]


class ScriptedEngine:
    """Satisfies `Engine`. Token i of a request is generated at an exact moment, by the version served at that moment.

    Every request that generates advances by the same clock, the engine's *work*: seconds of a request that has the engine to itself. So
    a change of speed touches no request, and an arrival or an end costs the logarithm of how many there are.

    Args:
        slots: requests that generate at once; others queue in order.
        script: called as ``script(request, number)`` when a request comes in, `number` counting from 0 over the engine's life.
        vocab_size: bound on the token ids.
        request_timeout: seconds after which a request that hangs raises `EngineFault`.
        load_factor: called with the number of requests that generate (at least 1); factor on the time of every token, above 0.

    Attributes:
        most_in_flight: highest number of requests there ever were at once, queued ones included.
        planned_tokens, planned_seconds: of all requests so far, by their plans; the seconds are work.
        longest_tokens, longest_seconds: the greatest of any one request.
    """

    def __init__(
        self,
        name: str = "scripted",
        *,
        slots: int = 64,
        script: Callable[[GenerateRequest, int], Plan] = lambda request, number: Plan(),
        vocab_size: int = 32_768,
        request_timeout: float = 600.0,
        load_factor: Callable[[int], float] | None = None,
    ) -> None:
        self.name = name
        self.version = 0
        self.in_flight = 0
        self.alive = True
        self.slots = slots
        self.load_factor = load_factor
        self.most_in_flight = 0
        self.requests = 0
        self.planned_tokens = 0
        self.planned_seconds = 0.0
        self.longest_tokens = 0
        self.longest_seconds = 0.0
        self._script = script
        self._answers = answers(vocab_size)
        self._request_timeout = request_timeout
        self._open: dict[Request, None] = {}
        self._queue: deque[Request] = deque()
        self._running = 0
        self._with_first = 0
        self._ends: list[tuple[float, int, Request]] = []
        self._published: list[tuple[float, int]] = []
        self._paused: PauseMode | None = None
        self._dead = False
        self._hung = False
        self._slowdown = 1.0
        # Work is `_work` at the time `_since`, and has grown by `_rate` a second from then on.
        self._work = 0.0
        self._since = 0.0
        self._rate = 1.0
        self._timer: asyncio.TimerHandle | None = None
        self._due = math.inf
        self._watchdog: asyncio.TimerHandle | None = None
        self._busy = 0.0
        self._busy_since = 0.0
        self._slot_seconds = 0.0
        self._slot_since = 0.0

    @property
    def busy_seconds(self) -> float:
        return self._busy + (self._now() - self._busy_since if self.in_flight else 0.0)

    @property
    def slot_seconds(self) -> float:
        """Sum over all slots of the seconds in which they generated; a pause, a hang and a queue don't count."""
        return self._slot_seconds + (self._running * (self._now() - self._slot_since) if self._rate else 0.0)

    @property
    def paused(self) -> bool:
        return self._paused is not None

    @property
    def slowdown(self) -> float:
        """Factor on all times from now on."""
        return self._slowdown

    @slowdown.setter
    def slowdown(self, factor: float) -> None:
        self._slowdown = factor
        self._set_rate()

    async def generate(self, request: GenerateRequest) -> Completion:
        """Generate as the script says. Raises `EngineFault` for a scripted error, a death, or a hang that outlasts the timeout."""
        if self._dead:
            raise self._fault("it is dead", unreachable=True)
        loop = asyncio.get_running_loop()
        now = loop.time()
        plan = self._script(request, self.requests)
        running = Request(request, plan, self.requests, loop.create_future(), now + self._request_timeout)
        self._enter(running, now)
        try:
            return await running.answer
        except BaseException:
            if running in self._open:
                self._leave(running, self._now())
            raise

    async def pause(self, mode: PauseMode) -> None:
        """Stop where every request is. After `retract` each one spends its `first` seconds anew before it goes on, its tokens kept."""
        self._paused = mode
        self._set_rate()

    async def resume(self) -> None:
        mode, self._paused = self._paused, None
        if mode == "retract" and self._with_first:
            self._begin_anew()
        self._set_rate()
        self._admit(self._now())

    def publish(self, version: int) -> None:
        """Count as `version` from the next token on, whether paused or not."""
        self.version = version
        self._published.append((self._work_at(self._now()), version))

    def die(self) -> None:
        """Go down with everything in flight."""
        self._dead, self.alive = True, False
        for request in list(self._open):
            self._fail(request, self._fault("the connection was lost", unreachable=True))
        self._set_rate()

    def revive(self) -> None:
        """Come back, or go on after a hang, under the version published last; whoever routes to it finds out by `healthy`."""
        self._dead = self._hung = False
        self._set_rate()
        self._admit(self._now())

    def hang(self) -> None:
        """Generate nothing and answer nothing from now on, also to requests that still come."""
        self._hung = True
        self._set_rate()

    async def load_from_disk(self, path: Path, version: int, *, flush_cache: bool) -> None:
        self.publish(version)

    async def join_weight_group(self, *, address: str, port: int, rank: int, world_size: int, name: str, backend: str) -> None:
        return None

    async def leave_weight_group(self, name: str) -> None:
        return None

    async def begin_update(self) -> None:
        return None

    async def receive_bucket(self, bucket: WeightBucket, *, group: str, version: int, flush_cache: bool, packed: bool) -> None:
        self.publish(version)

    async def end_update(self) -> None:
        return None

    async def digest(self) -> str:
        return f"weights of version {self.version}"

    async def flush_cache(self) -> None:
        return None

    async def healthy(self) -> bool:
        return not self._dead and not self._hung

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    # In and out ---------------------------------------------------------------------------------------------------------

    def _enter(self, request: Request, now: float) -> None:
        plan = request.plan
        seconds = plan.first + plan.tokens * plan.per_token
        self.requests += 1
        self.planned_tokens += plan.tokens
        self.planned_seconds += seconds
        if plan.tokens > self.longest_tokens:
            self.longest_tokens = plan.tokens
        if seconds > self.longest_seconds:
            self.longest_seconds = seconds
        if not self.in_flight:
            self._busy_since = now
        self.in_flight += 1
        if self.in_flight > self.most_in_flight:
            self.most_in_flight = self.in_flight
        self._open[request] = None
        if self._watchdog is None and request.deadline < math.inf:
            self._watchdog = asyncio.get_running_loop().call_at(request.deadline, self._give_up)
        self._queue.append(request)
        self._admit(now)

    def _leave(self, request: Request, now: float) -> None:
        """Free what a request held, whichever way it ends."""
        del self._open[request]
        if request.running:
            self._count_slots(now)
            self._running -= 1
            request.running = False
            request.finish = math.inf  # its place in `_ends` is void now
            if request.plan.first:
                self._with_first -= 1
            if self.load_factor is not None:
                self._set_rate()
        else:
            self._queue.remove(request)
        self.in_flight -= 1
        if not self.in_flight:
            self._busy += now - self._busy_since
        if self._queue:
            self._admit(now)

    def _admit(self, now: float) -> None:
        queue = self._queue
        if not queue or self._running >= self.slots or self._paused is not None or self._dead or self._hung:
            return
        self._count_slots(now)
        work = self._work + (now - self._since) * self._rate
        while queue and self._running < self.slots:
            request = queue.popleft()
            self._running += 1
            request.running = True
            request.admitted = request.version = self.version
            request.mark = len(self._published)
            request.begin = work + request.plan.first
            if request.plan.first:
                self._with_first += 1
            self._schedule(request)
        if self.load_factor is not None:
            self._set_rate()
        else:
            self._arm()

    def _fail(self, request: Request, error: EngineFault) -> None:
        self._leave(request, self._now())
        if not request.answer.done():
            request.answer.set_exception(error)

    def _give_up(self) -> None:
        """End the requests whose time is up, and look again when the oldest one's is."""
        self._watchdog = None
        now = self._now()
        while self._open:
            oldest = next(iter(self._open))
            if oldest.deadline > now:
                self._watchdog = asyncio.get_running_loop().call_at(oldest.deadline, self._give_up)
                return
            self._fail(oldest, self._fault(f"a request got no answer for {self._request_timeout:g} s"))

    # Time ---------------------------------------------------------------------------------------------------------------

    def _work_at(self, now: float) -> float:
        return self._work + (now - self._since) * self._rate

    def _set_rate(self) -> None:
        """Have work go on at the speed that is right from now on."""
        now = self._now()
        self._count_slots(now)
        self._work, self._since = self._work_at(now), now
        if self._paused is not None or self._dead or self._hung:
            self._rate = 0.0
        else:
            load = self.load_factor(max(1, self._running)) if self.load_factor is not None else 1.0
            self._rate = 1.0 / (self._slowdown * load)
        self._arm(anew=True)

    def _count_slots(self, now: float) -> None:
        if self._rate:
            self._slot_seconds += self._running * (now - self._slot_since)
        self._slot_since = now

    def _schedule(self, request: Request) -> None:
        """Note the work at which a request ends."""
        plan = request.plan
        if plan.fault == "hang":
            return
        request.finish = request.begin + (request.last - request.produced) * plan.per_token
        heappush(self._ends, (request.finish, request.number, request))

    def _arm(self, *, anew: bool = False) -> None:
        """Set the timer to the next end; `anew` also where that is known already, but its time has changed."""
        ends = self._ends
        while ends and ends[0][2].finish != ends[0][0]:
            heappop(ends)
        due = ends[0][0] if ends and self._rate else math.inf
        if due == self._due and not anew:
            return
        self._due = due
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due < math.inf:
            when = self._since + (due - self._work) / self._rate
            self._timer = asyncio.get_running_loop().call_at(when, self._end_due)

    def _end_due(self) -> None:
        """End every request whose work is done; the timer stands for exactly that work, whatever rounding says."""
        self._timer = None
        due, self._due = max(self._due, self._work_at(self._now())), math.inf
        ends = self._ends
        while ends and ends[0][0] <= due:
            finish, _, request = heappop(ends)
            if request.finish == finish:
                self._end(request)
        self._arm()

    def _end(self, request: Request) -> None:
        fault = request.plan.fault
        if fault == "death":
            self.die()
        elif fault == "error":
            self._fail(request, self._fault("it answered 500"))
        else:
            spans = request.spans_of(request.last, self._published)
            self._leave(request, self._now())
            if not request.answer.done():
                request.answer.set_result(self._completion(request, spans))

    def _begin_anew(self) -> None:
        """Credit the tokens generated so far, and have every request that needs them spend its first seconds again."""
        work = self._work_at(self._now())
        running = [request for request in self._open if request.running]
        for request in running:
            if request.plan.first:
                request.begin_anew(work, self.version, self._published)
        self._ends = []
        for request in running:
            self._schedule(request)
        heapify(self._ends)

    # Answers ------------------------------------------------------------------------------------------------------------

    def _completion(self, request: Request, spans: Spans) -> Completion:
        prompt, plan, count = request.prompt, request.plan, request.last
        start = prompt.index if isinstance(prompt, NumberedRequest) else prompt.affinity * 31 + request.number
        token_ids, logprobs = self._answers.take(start, count)
        reason = "abort" if plan.fault == "abort" else plan.finish_reason
        return Completion(token_ids, logprobs, spans, reason, request.admitted)

    def _fault(self, message: str, *, unreachable: bool = False) -> EngineFault:
        error = EngineFault(message, origin=self.name)
        error.unreachable = unreachable
        return error

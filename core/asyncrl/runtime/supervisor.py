"""Engines are watched, started again when their server dies or hangs, and brought to the present weights before they get requests.

A server that was started again serves the weights of its start. So its engine is left out until a publication has reached it: the next
one, or one of its own while the training loop waits, which may be for nothing but this engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, Protocol, TypeVar

from asyncrl.errors import AsyncrlError, EnginesLost, PublicationError
from asyncrl.metrics import Axis, Counter, MetricSet
from asyncrl.rollout.patience import Wait
from asyncrl.runtime.engine_actor import EngineAddress

log = logging.getLogger("asyncrl")
T = TypeVar("T")

LOOK_SECONDS = 1.0
FIRST_PAUSE = 1.0
PAUSE_FACTOR = 4.0
"""Pauses before restarts are 1, 4, 16, … s: a server whose actor was killed needs some seconds to go, and its port with it."""
LONGEST_PAUSE = 60.0
WARN_SECONDS = 30.0

Look = Literal["well", "silent", "dead"]


class Server(Protocol):
    """One engine's server as the supervisor sees it."""

    name: str

    async def look(self) -> Look:
        """Whether it answers, does not answer within seconds, or is gone. Never raises."""
        ...

    async def start(self) -> EngineAddress:
        """End what is left of it and start it again. Raises `AsyncrlError` with the server's last words."""
        ...


class RolloutSide(Protocol):
    async def engine_lost(self, name: str, why: str) -> list[str]:
        """Send no requests to an engine until an update reaches a new server of it; return the engines that get none now."""
        ...

    async def engine_back(self, address: EngineAddress) -> None:
        """An engine has a new server, which serves the weights of its start."""
        ...


class PublisherSide(Protocol):
    @property
    def version(self) -> int: ...

    async def publish(self, update_norm: float) -> int: ...

    async def bring_up(self) -> int: ...

    def forget_members(self) -> None: ...


class SupervisorMetrics(MetricSet):
    """Logged as ``engines/…``."""

    restarts = Counter("Times an engine's server was started again", unit="restarts", axis=Axis.WALL_SECONDS, label="engine")


class Supervisor:
    """Stands between the training loop and the publisher: the loop's `Publisher` and its `Engines`.

    Args:
        max_restarts: how often each engine is started again; failed starts count.
        hang_timeout: seconds without an answer after which a server counts as hanging, and is ended.
    """

    def __init__(
        self,
        servers: Sequence[Server],
        rollout: RolloutSide,
        publisher: PublisherSide,
        *,
        max_restarts: int,
        hang_timeout: float,
    ) -> None:
        self.metrics = SupervisorMetrics("engines")
        self._engines = [_Supervised(server) for server in servers]
        self._rollout = rollout
        self._publisher = publisher
        self._max_restarts = max_restarts
        self._hang_timeout = hang_timeout
        self._losses = 0
        self._failure: BaseException | None = None
        self._changed = asyncio.Event()
        self._watches: list[asyncio.Task[None]] = []

    @property
    def version(self) -> int:
        """What the engines serve."""
        return self._publisher.version

    def start(self) -> None:
        """Begin to watch."""
        for one in self._engines:
            watch = asyncio.get_running_loop().create_task(self._watch(one))
            watch.add_done_callback(self._ended)
            self._watches.append(watch)

    async def close(self) -> None:
        """Watch no more."""
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)

    def rollout_anew(self, idle: Sequence[str]) -> None:
        """The rollout actor was made anew: it is in no weight group, and these engines get no requests until an update reaches them."""
        self._losses += 1
        self._publisher.forget_members()
        self.leave_out(idle)

    # For the training loop --------------------------------------------------------------------------------------------------

    async def publish(self, update_norm: float) -> int:
        """Publish, as `Publisher.publish` does; while every engine is down, wait for the first that is back.

        Raises:
            EnginesLost: all are down and none may be started again.
            PublicationError: it failed although no engine is down.
        """
        return await self._reach(lambda: self._publisher.publish(update_norm))

    async def beside(self, wait: Awaitable[T], behind: bool) -> T:
        """Wait for something of the rollout side's, and meanwhile bring engines that come back to the present weights.

        Args:
            behind: whether the trainer has learnt since the last publication. Its weights are then a new version, for which engines
                that come back wait until it is due, unless none is left that generates.

        Raises:
            EnginesLost: all engines are down and none may be started again.
        """
        task: asyncio.Future[T] = asyncio.ensure_future(wait)
        try:
            while not task.done():
                self._require_one()
                self._changed.clear()
                if any(one.state == "waiting" for one in self._engines) and not (behind and self._any("serving")):
                    await self._reach(self._publisher.bring_up)
                    behind = False
                    continue
                await self._either(task)
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _either(self, task: asyncio.Future[T]) -> None:
        changed = asyncio.ensure_future(self._changed.wait())
        both: list[asyncio.Future[Any]] = [task, changed]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()

    async def _reach(self, publish: Callable[[], Awaitable[int]]) -> int:
        while True:
            await self._one_is_up()
            losses = self._losses
            waiting = [(one, one.restarts) for one in self._engines if one.state == "waiting"]
            try:
                version = await publish()
            except PublicationError as error:
                if losses == self._losses and await self._all_well():
                    raise
                log.warning("a publication reached no engine and is made again once one is back: %s", error)
                await self._until_something_changes()
                continue
            for one, restarts in waiting:
                if one.state == "waiting" and one.restarts == restarts:
                    one.state = "serving"
            return version

    async def _one_is_up(self) -> None:
        """Wait until some engine has a server."""
        names = ", ".join(one.server.name for one in self._engines)
        wait = Wait(
            WARN_SECONDS, lambda seconds: log.warning("no engine is up; waiting for %s (%.0f s)", names, seconds), lambda: names
        )
        wait.begin()
        try:
            while self._require_one() and not self._any("serving", "waiting"):
                self._changed.clear()
                await self._changed.wait()
        finally:
            wait.end()

    async def _all_well(self) -> bool:
        if self._any("starting"):
            return False
        looks = await asyncio.gather(*(one.server.look() for one in self._engines if one.state != "given up"))
        return all(look == "well" for look in looks)

    async def _until_something_changes(self) -> None:
        """Wait until an engine is found dead, is back, or answers again."""
        self._changed.clear()
        while not self._changed.is_set() and not await self._all_well():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._changed.wait()

    def _any(self, *states: str) -> bool:
        return any(one.state in states for one in self._engines)

    def _require_one(self) -> bool:
        """Return True while some engine is up or may come up; raise what says why not."""
        if self._failure is not None:
            raise self._failure
        if not self._any("serving", "waiting", "starting"):
            causes = "; ".join(f"{one.server.name}: {one.why}" for one in self._engines)
            raise EnginesLost(
                f"no engine is left, and each was started again {self._max_restarts} times (max_engine_restarts): {causes}"
            )
        return True

    # Watching ---------------------------------------------------------------------------------------------------------------

    async def _watch(self, one: _Supervised) -> None:
        while one.state != "given up":
            await self._until_lost(one)
            await self._bring_back(one)

    async def _until_lost(self, one: _Supervised) -> None:
        """Look until the server is gone or hangs, and say why in `one.why`."""
        clock = asyncio.get_running_loop().time
        answered = clock()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            began = clock()
            look = await one.server.look()
            if look == "well":
                answered = began
            if look == "dead":
                one.why = "its server died"
                return
            if clock() - answered >= self._hang_timeout:
                one.why = f"its server hung: no answer for {clock() - answered:.0f} s"
                return

    async def _bring_back(self, one: _Supervised) -> None:
        """Start a new server, again and again as often as may be."""
        one.state = "starting"
        self._losses += 1
        self.leave_out(await self._rollout.engine_lost(one.server.name, one.why))
        while one.restarts < self._max_restarts:
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * PAUSE_FACTOR**one.restarts)
            one.restarts += 1
            log.warning(
                "%s is started again in %g s (%d of at most %d times): %s",
                one.server.name,
                pause,
                one.restarts,
                self._max_restarts,
                one.why,
            )
            self.metrics.restarts.add(1, one.server.name)
            await asyncio.sleep(pause)
            try:
                address = await one.server.start()
            except AsyncrlError as error:
                one.why = error.message
                continue
            await self._rollout.engine_back(address)
            self._publisher.forget_members()
            one.state = "waiting"
            log.warning("%s has a new server, which gets requests once the weights have reached it", one.server.name)
            break
        else:
            one.state = "given up"
            log.error("%s is given up: %s", one.server.name, one.why)
        self._changed.set()

    def leave_out(self, idle: Sequence[str]) -> None:
        """These engines get no requests, though they may be up: a publication did not reach them."""
        for one in self._engines:
            if one.state == "serving" and one.server.name in idle:
                one.state = "waiting"
        self._changed.set()

    def _ended(self, watch: asyncio.Task[None]) -> None:
        if not watch.cancelled() and watch.exception() is not None:
            self._failure = self._failure or watch.exception()
            self._changed.set()


class _Supervised:
    """`state`: serving or waiting for weights, both with a server; starting; or given up."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.state: Literal["serving", "waiting", "starting", "given up"] = "serving"
        self.restarts = 0
        self.why = ""

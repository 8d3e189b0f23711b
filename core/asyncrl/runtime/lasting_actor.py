"""A Ray actor that another one takes the place of when its process dies."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import ray

from asyncrl.errors import ActorLost
from asyncrl.runtime.cluster import ask
from asyncrl.runtime.restarts import Restarts

T = TypeVar("T")


async def kill(actor: Any) -> None:
    """End the process of a Ray actor."""
    await asyncio.to_thread(ray.kill, actor)


class LastingActor:
    """Calls an actor, and once `lasts` is set makes another when a call finds it dead.

    Args:
        name: for messages.
        make: returns a new actor.
        prepare: brings a new actor to where the former was; raises `ActorLost` when that one dies too.
        last_words: returns what the dead process said at last, or ''.
        kill: ends an actor, dead or not: one that is only out of reach must not come back beside its successor.

    Attributes:
        lasts: whether a new one is made; before, a death is only an error.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], Any],
        prepare: Callable[[Any], Awaitable[None]],
        restarts: Restarts,
        *,
        last_words: Callable[[], str] = str,
        kill: Callable[[Any], Awaitable[None]] = kill,
    ) -> None:
        self.lasts = False
        self._name = name
        self._make = make
        self._prepare = prepare
        self._restarts = restarts
        self._last_words = last_words
        self._kill = kill
        self._actor = make()
        self._deaths = 0
        self._remaking: asyncio.Task[None] | None = None

    async def there(self) -> Any:
        """Return the actor, waiting for one that is being made.

        Raises:
            AsyncrlError: there is none any more: it could not be made, or died too often.
        """
        if self._remaking is not None:
            try:
                await asyncio.shield(self._remaking)
            except asyncio.CancelledError:
                if not self._remaking.cancelled():
                    raise
                raise ActorLost(f"{self._name} died, and no other is made any more") from None
        return self._actor

    async def once(
        self, call: Callable[[Any], Awaitable[T]], what: str = "", timeout: float | None = None, *, told: str = ""
    ) -> T:
        """Call the actor, as `ask` does. Raises `ActorLost` when it dies meanwhile; another is being made then."""
        actor = await self.there()
        deaths = self._deaths
        try:
            return await ask(call(actor), what or self._name, timeout, told=told)
        except ActorLost as error:
            if self.lasts and deaths == self._deaths:
                self._deaths += 1
                self._remaking = asyncio.get_running_loop().create_task(self._remake(error))
                self._remaking.add_done_callback(_seen)
            raise

    async def again(self, call: Callable[[Any], Awaitable[T]], what: str = "", *, told: str = "") -> T:
        """Call the actor, and its successor when it dies meanwhile."""
        while True:
            try:
                return await self.once(call, what, told=told)
            except ActorLost:
                if not self.lasts:
                    raise

    async def let_go(self) -> bool:
        """Make no other from now on, and give up one that is being made; whether there is one."""
        self.lasts = False
        if self._remaking is None:
            return True
        self._remaking.cancel()
        await asyncio.gather(self._remaking, return_exceptions=True)
        return not self._remaking.cancelled() and self._remaking.exception() is None

    async def end(self) -> None:
        """End the process."""
        await self._kill(self._actor)

    async def _remake(self, error: ActorLost) -> None:
        while True:
            words = self._last_words()
            self._restarts.take(self._name, f"{error.message}{words and f'; its last words: {words}'}")
            await self._kill(self._actor)
            self._actor = self._make()
            try:
                await self._prepare(self._actor)
                return
            except ActorLost as again:
                error = again


def _seen(task: asyncio.Task[None]) -> None:
    """Nobody need wait for it: the next call hears of its failure."""
    with contextlib.suppress(asyncio.CancelledError):
        task.exception()

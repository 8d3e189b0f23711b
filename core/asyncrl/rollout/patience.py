"""A wait that counts its seconds and speaks up again and again while it lasts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from asyncrl.waits import Waiting


class Wait:
    """One kind of wait, begun and ended many times; one timer while it lasts, nothing otherwise.

    Args:
        every: seconds between two calls of `tick`.
        tick: called with the seconds waited so far.
        what: says what is waited for.
    """

    def __init__(self, every: float, tick: Callable[[float], None], what: Callable[[], str]) -> None:
        self._every = every
        self._tick = tick
        self._what = what
        self._waiting: Waiting | None = None
        self._began = self._counted = 0.0
        self._seconds = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._began = self._counted = loop.time()
            self._timer = loop.call_later(self._every, self._speak)
            self._waiting = Waiting(self._what, loop.time)

    def end(self) -> None:
        if self._timer is not None:
            self._count()
            self._timer.cancel()
            self._timer = None
        if self._waiting is not None:
            self._waiting.over()
            self._waiting = None

    def take_seconds(self) -> float:
        """Return the seconds waited since the last call, those of a wait that still lasts included."""
        if self._timer is not None:
            self._count()
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def _count(self) -> None:
        now = asyncio.get_running_loop().time()
        self._seconds += now - self._counted
        self._counted = now

    def _speak(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._every, self._speak)
        self._tick(loop.time() - self._began)

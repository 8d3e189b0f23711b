"""An event loop under a virtual clock: hours of waiting pass at once, and a deadlock is an error instead of a hang."""

from __future__ import annotations

import asyncio
import math
import selectors
from collections import Counter
from collections.abc import Coroutine
from typing import Any, TypeVar

from asyncrl.errors import DeadlineExceeded

T = TypeVar("T")

RESOLUTION = 1e-6
"""Seconds by which a timer may be early."""


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """Time stands still while anything can run, then jumps to the next timer. For coroutines only: no sockets, no threads.

    Args:
        limit: virtual seconds after which the loop gives up.
    """

    def __init__(self, limit: float = float("inf")) -> None:
        self._now = 0.0
        self._limit = limit
        super().__init__(_Jumping(self))
        self._clock_resolution = RESOLUTION

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now

    def jump(self) -> None:
        """Go to the next timer.

        Raises:
            DeadlineExceeded: there is none, so that nothing would ever happen again; or it lies beyond the limit.
        """
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        if not timers or timers[0].when() == math.inf:
            raise DeadlineExceeded(
                f"deadlock at {self._now:g} virtual seconds: nothing is scheduled; waiting are {self._waiting()}"
            )
        when = timers[0].when()
        if when > self._limit:
            limit, self._limit = self._limit, float("inf")  # what is cancelled now may still take its time
            raise DeadlineExceeded(f"still running after {limit:g} virtual seconds; waiting are {self._waiting()}")
        self._now = max(self._now, when)
        # A resolution finer than the spacing of floats is lost in adding it to the time, and the timer would never be due.
        self._clock_resolution = max(RESOLUTION, 2 * math.ulp(self._now))

    def _waiting(self) -> str:
        places: Counter[str] = Counter()
        for task in asyncio.all_tasks(self):
            frames = task.get_stack(limit=1)
            where = f"{frames[-1].f_code.co_qualname}:{frames[-1].f_lineno}" if frames else "?"
            named = not task.get_name().startswith("Task-")
            places[f"{task.get_name()} at {where}" if named else where] += 1
        return ", ".join(f"{count} x {place}" if count > 1 else place for place, count in sorted(places.items())) or "no tasks"


class _Jumping(selectors.SelectSelector):
    """Never sleeps: where a loop would, the clock jumps."""

    def __init__(self, loop: VirtualClockLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:
            self._loop.jump()
        return []


def run_virtual(coroutine: Coroutine[Any, Any, T], *, limit: float = float("inf")) -> T:
    """Run a coroutine to its end under a virtual clock that starts at 0; whatever it left running is cancelled.

    Args:
        limit: virtual seconds it may take.

    Raises:
        DeadlineExceeded: a deadlock, or the limit was reached; names the tasks that wait and where.
    """
    with asyncio.Runner(loop_factory=lambda: VirtualClockLoop(limit)) as runner:
        return runner.run(coroutine)

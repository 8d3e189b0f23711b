"""What this process waits for now, by name: a wait speaks up again and again while it lasts, and a dump of the stacks names it."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator

SECONDS = 30.0


class Waiting:
    """One wait that has begun. It counts as long as it is referred to and `over` was not called.

    Args:
        what: says what is waited for, asked when somebody wants to know.
    """

    def __init__(self, what: Callable[[], str], clock: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._clock = clock
        self._began = clock()
        _CURRENT.add(self)

    @property
    def seconds(self) -> float:
        return self._clock() - self._began

    def over(self) -> None:
        _CURRENT.discard(self)

    def __str__(self) -> str:
        return f"{self._what()} ({self.seconds:.0f} s)"


_CURRENT: weakref.WeakSet[Waiting] = weakref.WeakSet()


def current_waits() -> list[str]:
    """Return what this process waits for, the longest wait first. May be called in any thread."""
    for _ in range(100):
        with contextlib.suppress(RuntimeError):  # one began meanwhile
            return [str(one) for one in sorted(_CURRENT, key=lambda one: -one.seconds)]
    return []


@contextlib.contextmanager
def telling(what: str) -> Iterator[None]:
    """Print a line on stderr every `SECONDS` while the body runs; it must give other threads their turn, as waiting does."""
    done = threading.Event()
    waiting = Waiting(lambda: what)

    def tell() -> None:
        waited = 0.0
        while not done.wait(SECONDS):
            waited += SECONDS
            print(f"asyncrl: {what} has not ended after {waited:g} s", file=sys.stderr, flush=True)

    threading.Thread(target=tell, name="telling", daemon=True).start()
    try:
        yield
    finally:
        waiting.over()
        done.set()

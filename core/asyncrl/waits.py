"""A wait for a plugin's own code says what it waits for, again and again: nothing else would tell that it never ends."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

SECONDS = 30.0


@contextlib.contextmanager
def telling(what: str) -> Iterator[None]:
    """Print a line on stderr every `SECONDS` while the body runs; it must give other threads their turn, as waiting does."""
    done = threading.Event()

    def tell() -> None:
        waited = 0.0
        while not done.wait(SECONDS):
            waited += SECONDS
            print(f"asyncrl: {what} has not ended after {waited:g} s", file=sys.stderr, flush=True)

    threading.Thread(target=tell, name="telling", daemon=True).start()
    try:
        yield
    finally:
        done.set()

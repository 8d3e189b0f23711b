"""Waits that say what they wait for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import TypeVar

log = logging.getLogger("asyncrl")
T = TypeVar("T")


async def patiently(awaitable: Awaitable[T], what: str, every: float) -> T:
    """Await, warning every `every` seconds that `what` is still waited for."""
    task = asyncio.ensure_future(awaitable)
    loop = asyncio.get_running_loop()
    started = loop.time()
    try:
        while not (await asyncio.wait([task], timeout=every))[0]:
            log.warning("still waiting for %s (%.0f s)", what, loop.time() - started)
        return task.result()
    finally:
        if not task.done():
            task.cancel()

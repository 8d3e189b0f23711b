"""Engines of a rollout side that died become another one's: what they did for it is ended, and their weights are looked at."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from asyncrl.errors import EngineError
from asyncrl.rollout.client import EngineClient

log = logging.getLogger("asyncrl")

TAKE_OVER_TIMEOUT = 30.0


@dataclass(frozen=True)
class Served:
    """What the engines serve, as the controller knows it.

    Attributes:
        digest: the trainer's, of the weights of `version`.
        doubtful: engines that may serve something else, because an update did not reach them, or was under way.
        group: name of the weight group that they may have joined.
    """

    version: int
    digest: str
    doubtful: frozenset[str] = frozenset()
    group: str = ""


async def take_over(engine: EngineClient, served: Served) -> bool:
    """End what the engine does for the dead client and resume it; whether it may get requests, because it serves what it should.

    One that is not gets none until an update has reached it.
    """
    engine.lost()
    engine.version = served.version
    try:
        async with asyncio.timeout(TAKE_OVER_TIMEOUT):
            if (await engine.abilities()).pauses:
                await engine.resume()
            await engine.abort_all()  # only now: a server may hold what came during a pause where no abort reaches it
            await engine.flush_cache()  # of prefixes whose weights nobody knows any more
            why = await _misfit(engine, served)
    except (EngineError, TimeoutError) as error:
        why = str(error) or f"no answer within {TAKE_OVER_TIMEOUT:g} s"
    if why:
        log.warning("%s gets no requests until an update has reached it: %s", engine.name, why)
        return False
    engine.alive, engine.unfit = True, False
    return True


async def _misfit(engine: EngineClient, served: Served) -> str:
    """Return why the engine's weights can't be trusted, or ''."""
    if engine.name in served.doubtful:
        return f"it may serve something else than version {served.version}"
    if (version := await engine.served_version()) not in (None, served.version):
        return f"it serves version {version} instead of {served.version}"
    if engine.comparable_digest and await engine.digest() != served.digest:
        return f"its weights are not those of version {served.version}"
    return ""

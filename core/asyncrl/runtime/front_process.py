"""The process of a router in front of the engines. It is owned by the process that sends through it, and ends with it."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from pathlib import Path

import aiohttp

from asyncrl.errors import EngineError
from asyncrl.host import Host
from asyncrl.rollout.engine import NO_FRONT, FrontPlace, FrontSpec
from asyncrl.runtime import child
from asyncrl.runtime.last_words import last_lines, last_words
from asyncrl.training.publication import free_port

HOST = "127.0.0.1"  # its only client is beside it
LOOK_SECONDS = 5.0
LINES = 12


def front_process(host: Host, *, request_timeout: float, log_file: Path) -> FrontProcess | None:
    """Return the process that the engine plugin has in front of its engines, not started yet; None if it has none."""
    if not host.has("engine_front"):
        return None
    describe = host.one("engine_front")
    if describe(place=FrontPlace(HOST, 0, 0, request_timeout)) == NO_FRONT:
        return None
    return FrontProcess(lambda place: describe(place=place), request_timeout=request_timeout, log_file=log_file)


class FrontProcess:
    """Satisfies `asyncrl.rollout.front.FrontServer`.

    Args:
        describe: the engine plugin's `engine_front`.
        request_timeout: seconds that a request may take.
        log_file: where its output goes.
    """

    def __init__(self, describe: Callable[[FrontPlace], FrontSpec], *, request_timeout: float, log_file: Path) -> None:
        self._describe = describe
        self._request_timeout = request_timeout
        self._log_file = log_file
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> str:
        """Start it at free ports and wait until it answers; return its address.

        Raises:
            EngineError: it ended or did not answer in time; the message carries its last words.
        """
        await self.stop()
        spec = self._describe(FrontPlace(HOST, free_port(HOST), free_port(HOST), self._request_timeout))
        self._process = child.spawn(spec.argv, env=spec.env, log_file=self._log_file)
        try:
            await self._wait(spec)
        except BaseException:
            await self.stop()
            raise
        return spec.url

    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await asyncio.to_thread(child.end, process)

    async def _wait(self, spec: FrontSpec) -> None:
        assert self._process is not None
        deadline = asyncio.get_running_loop().time() + spec.start_timeout
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=LOOK_SECONDS)) as session:
            while asyncio.get_running_loop().time() < deadline:
                if (code := self._process.poll()) is not None:
                    raise EngineError(f"the router ended with code {code} while starting: {self._why()}")
                try:
                    async with session.get(f"{spec.url}/workers") as answer:
                        if answer.status == 200:
                            return
                except (aiohttp.ClientError, OSError, TimeoutError):
                    pass
                await asyncio.sleep(0.1)
        raise EngineError(f"the router did not answer within {spec.start_timeout:g} s: {self._why()}")

    def _why(self) -> str:
        words = last_words(self._log_file)
        return f"{words} (its log is {self._log_file})" if words else f"\n{last_lines(self._log_file, LINES)}"

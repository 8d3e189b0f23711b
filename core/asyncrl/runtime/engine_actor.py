"""Owns one engine's server process: starts it, waits until it answers, tells how it ended, ends it."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp

from asyncrl.authoring import RunFacts
from asyncrl.errors import EngineError, ResourceError
from asyncrl.hookspecs import PROCESSES
from asyncrl.plugins import PluginSpec, build_host
from asyncrl.rollout.engine import EnginePlace, ServerSpec
from asyncrl.runtime import child
from asyncrl.training.publication import free_port

PORT_TRIES = 3


@dataclass(frozen=True)
class EngineAddress:
    """Where an engine answers, and what it can do."""

    name: str
    spec: ServerSpec


class EngineActor:
    """A Ray actor; everything it starts ends with it, whatever ends it."""

    def __init__(self, specs: Sequence[PluginSpec], facts: RunFacts) -> None:
        self._host = build_host(specs, facts, slots=PROCESSES["engine"])
        self._process: subprocess.Popen[bytes] | None = None
        self._log_file = Path()

    async def start(self, place: EnginePlace) -> EngineAddress:
        """Start the server (on a free port when `place.port` is 0) and wait until it is healthy.

        Raises:
            EngineError: it ended or did not answer in time; the message carries its last log lines.
            ResourceError: the port that was asked for is taken.
        """
        self._log_file = place.log_file
        for attempt in range(1, PORT_TRIES + 1):
            port = place.port or free_port(place.host)
            spec: ServerSpec = self._host.one("engine_server")(place=replace(place, port=port))
            if spec.argv:
                self._process = child.spawn(spec.argv, env=spec.env, log_file=place.log_file)
            try:
                await self._wait_healthy(spec)
                break
            except EngineError:
                self._end()
                port_taken = self._port_was_taken()
                if place.port and port_taken:
                    raise ResourceError(
                        f"port {port} is in use", origin="base_port", remedy="choose another, or 0 for free ones"
                    ) from None
                if not port_taken or attempt == PORT_TRIES:
                    raise
        return EngineAddress(f"engine-{place.index}", spec)

    async def log_tail(self, lines: int = 12) -> str:
        """Return the server's last log lines."""
        return self._tail(lines)

    async def running(self) -> bool:
        """Whether the server process is there (always true for an attached one)."""
        return self._process is None or self._process.poll() is None

    async def stop(self) -> None:
        """End the server and wait until it is gone."""
        await asyncio.to_thread(self._end)

    async def _wait_healthy(self, spec: ServerSpec) -> None:
        deadline = asyncio.get_running_loop().time() + spec.start_timeout
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
            while asyncio.get_running_loop().time() < deadline:
                if self._process is not None and (code := self._process.poll()) is not None:
                    raise EngineError(f"the engine's server ended with code {code} while starting:\n{self._tail(12)}")
                try:
                    async with session.get(f"{spec.url}/health") as answer:
                        if answer.status == 200:
                            return
                except (aiohttp.ClientError, TimeoutError):
                    pass
                await asyncio.sleep(0.1)
        raise EngineError(f"the engine's server at {spec.url} was not healthy within {spec.start_timeout:g} s:\n{self._tail(12)}")

    def _end(self) -> None:
        if self._process is not None:
            child.end(self._process)
            self._process = None

    def _tail(self, lines: int) -> str:
        try:
            return "\n".join(self._log_file.read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return "(no log)"

    def _port_was_taken(self) -> bool:
        tail = self._tail(12).lower()
        return "address already in use" in tail or ("port" in tail and "in use" in tail)

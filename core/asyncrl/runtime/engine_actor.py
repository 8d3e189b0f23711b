"""Owns one engine's server process: starts it, waits until it answers, tells how it ended, ends it."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import aiohttp

from asyncrl.authoring import RunFacts
from asyncrl.errors import EngineError, PluginFailed, ResourceError
from asyncrl.hookspecs import PROCESSES
from asyncrl.host import Host
from asyncrl.network import EVERY_ADDRESS, is_loopback, loopback_environment, reached_at
from asyncrl.plugins import PluginSpec, build_host
from asyncrl.rollout.connection import bearer, words
from asyncrl.rollout.engine import EnginePlace, Launch, ServerSpec
from asyncrl.runtime import child
from asyncrl.runtime.last_words import last_lines, last_words
from asyncrl.scrub import hide
from asyncrl.stacks import register, watch_loop
from asyncrl.training.publication import free_port

PORT_TRIES = 3
PORT_LINES = 100  # SGLang says more after it has said that its port is taken
LOOK_SECONDS = 10.0
HEALTH_SECONDS = 25.0  # SGLang generates a token to answer, and gives up after 20 s


@dataclass(frozen=True)
class EngineAddress:
    """Where an engine answers, and what it can do."""

    name: str
    spec: ServerSpec


@dataclass(frozen=True)
class EngineJob:
    """One engine to run.

    Attributes:
        name: for messages and metrics.
        launch: how its server is started outside the cluster's placement; None for the plugin's own way.
        url: of a running server to attach to; '' starts one.
        api_key: what the server at `url` requires.
        patience: seconds in which it must be healthy; 0 is what the plugin says.
    """

    name: str
    place: EnginePlace
    launch: Launch | None = None
    url: str = ""
    api_key: str = field(default="", repr=False)
    patience: float = 0.0


class EngineActor:
    """A Ray actor; everything it starts ends with it, whatever ends it."""

    def __init__(self, specs: Sequence[PluginSpec], facts: RunFacts) -> None:
        self._specs = specs
        self._facts = facts
        self._process: subprocess.Popen[bytes] | None = None
        self._log_file = Path()
        self._url = ""
        self._headers: dict[str, str] = {}
        self._secrets: list[str] = []

    @cached_property
    def _host(self) -> Host:
        """Made in the first call, so that what is wrong with a plugin arrives as itself: a constructor's error is only a dead actor."""
        return build_host(self._specs, self._facts, slots=PROCESSES["engine"])

    async def start(self, job: EngineJob) -> EngineAddress:
        """Start the server (on a free port when its port is 0) and wait until it is healthy. One that runs already is ended first.

        Raises:
            EngineError: it ended or did not answer in time; the message carries its last log lines.
            ResourceError: the port that was asked for is taken, or a server that runs already refuses the key.
        """
        register(f"actor of {job.name}", self._facts.run_dir)
        watch_loop()
        await self.stop()
        wanted = (job.launch.port if job.launch else 0) or job.place.port
        self._log_file = job.place.log_file
        self._secrets = [key for key in (job.api_key, job.place.api_key) if key]
        for attempt in range(1, PORT_TRIES + 1):
            port = wanted or free_port(job.place.host)
            spec = self._spec(job, port)
            self._url, self._headers = spec.url, bearer(spec.api_key)
            if spec.argv:
                self._process = child.spawn(spec.argv, env=spec.env, log_file=self._log_file, log_bytes=self._facts.log_bytes)
            try:
                await self._require_let_in(job, spec)
                await self._wait_healthy(spec)
                await self._require_let_in(job, spec)  # it may not have listened before
                await self._require_locked(spec)
                break
            except EngineError:
                await self.stop()
                port_taken = self._port_was_taken()
                if wanted and port_taken:
                    raise ResourceError(
                        f"port {port} is in use",
                        origin="eval.port" if job.launch else "base_port",
                        remedy="choose another, or 0 for free ones",
                    ) from None
                if not port_taken or attempt == PORT_TRIES:
                    raise
        return EngineAddress(job.name, spec)

    async def healthy(self) -> bool:
        """Whether the server is there and answers within seconds. Never asks `/health`, which takes a token and fails while paused."""
        if not await self.running():
            return False
        try:
            limit = aiohttp.ClientTimeout(total=LOOK_SECONDS)
            session = aiohttp.ClientSession(timeout=limit, headers=self._headers)
            async with session, session.get(f"{self._url}/model_info", allow_redirects=False) as answer:
                return answer.status in (200, 404)  # SGLang's older versions answer at another address
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False

    async def log_tail(self, lines: int = 12) -> str:
        """Return the server's last log lines."""
        return self._tail(lines)

    async def running(self) -> bool:
        """Whether the server process is there (always true for an attached one)."""
        return self._process is None or self._process.poll() is None

    async def stop(self) -> None:
        """End the server and wait until it is gone."""
        await asyncio.to_thread(self._end)

    def _spec(self, job: EngineJob, port: int) -> ServerSpec:
        spec: ServerSpec = self._host.one("engine_server")(place=replace(job.place, port=port))
        spec = replace(spec, start_timeout=job.patience or spec.start_timeout)
        if job.url:
            return replace(spec, argv=(), url=job.url.rstrip("/"), api_key=job.api_key)
        if not spec.argv:
            return spec
        if is_loopback(job.place.host):
            spec = replace(spec, env={**loopback_environment(), **spec.env})
        elif spec.api_key != job.place.api_key:
            raise PluginFailed(
                f"{self._host.active('engine')} has servers that can't require a key (no api_key in its ServerSpec)"
            )
        if job.place.host == EVERY_ADDRESS:
            spec = replace(spec, url=spec.url.replace(f"//{EVERY_ADDRESS}:", f"//{_own_address()}:"))
        if job.launch is None:
            return spec
        interpreter, *arguments = spec.argv
        visible = {"CUDA_VISIBLE_DEVICES": job.launch.devices} if job.launch.devices else {}
        return replace(
            spec,
            argv=(job.launch.python or interpreter, *arguments, *job.launch.server_args),
            env={**spec.env, **visible},
        )

    async def _wait_healthy(self, spec: ServerSpec) -> None:
        deadline = asyncio.get_running_loop().time() + spec.start_timeout
        last = "nothing answers"
        limit = aiohttp.ClientTimeout(total=HEALTH_SECONDS)
        async with aiohttp.ClientSession(timeout=limit, headers=self._headers) as session:
            while asyncio.get_running_loop().time() < deadline:
                if self._process is not None and (code := self._process.poll()) is not None:
                    raise EngineError(f"the engine's server ended with code {code} while starting: {self._why()}")
                try:
                    async with session.get(f"{spec.url}/health", allow_redirects=False) as answer:
                        if answer.status == 200:
                            return
                        last = f"it answers with status {answer.status}"
                except (aiohttp.ClientError, OSError, ValueError, TimeoutError) as error:
                    last = str(error) or type(error).__name__
                await asyncio.sleep(0.1)
        tail = f":\n{self._tail(12)}" if spec.argv else ""
        raise EngineError(
            f"the engine's server at {spec.url} was not healthy within {spec.start_timeout:g} s, at last: {last}{tail}"
        )

    async def _require_locked(self, spec: ServerSpec) -> None:
        """Refuse a server of our own that answers others than those who have its key."""
        if not spec.argv or not spec.api_key:
            return
        limit = aiohttp.ClientTimeout(total=LOOK_SECONDS)
        async with aiohttp.ClientSession(timeout=limit) as session:
            for headers in ({}, bearer(f"{spec.api_key}x")):
                try:
                    async with session.get(f"{spec.url}/model_info", headers=headers, allow_redirects=False) as answer:
                        if answer.status in (401, 403):
                            continue
                        told = f"it answered with status {answer.status}"
                except (aiohttp.ClientError, OSError, TimeoutError) as error:
                    told = words(error)
                await self.stop()
                raise PluginFailed(f"the server at {spec.url} does not refuse a request without its key: {told}")

    async def _require_let_in(self, job: EngineJob, spec: ServerSpec) -> None:
        """Refuse a server of somebody else's that wants another key. SGLang tells its health without any."""
        if spec.argv:
            return
        limit = aiohttp.ClientTimeout(total=LOOK_SECONDS)
        async with aiohttp.ClientSession(timeout=limit, headers=self._headers) as session:
            for path in ("/health", "/model_info"):
                with contextlib.suppress(aiohttp.ClientError, OSError, ValueError, TimeoutError):
                    async with session.get(f"{spec.url}{path}", allow_redirects=False) as answer:
                        if answer.status in (401, 403):
                            what = "the key" if spec.api_key else "requests without a key"
                            raise ResourceError(
                                f"the server at {spec.url} refuses {what} (status {answer.status})",
                                origin="eval.api_key" if job.url else "engine.api_key",
                                remedy="give the key that it requires",
                            )

    def _end(self) -> None:
        if self._process is not None:
            child.end(self._process)
            self._process = None

    def _why(self) -> str:
        words = hide(last_words(self._log_file), self._secrets)
        return f"{words} (its log is {self._log_file})" if words else f"\n{self._tail(12)}"

    def _tail(self, lines: int) -> str:
        """The server's last lines; whatever it says, they show no key."""
        return hide(last_lines(self._log_file, lines), self._secrets)

    def _port_was_taken(self) -> bool:
        tail = self._tail(12).lower()
        return "address already in use" in self._tail(PORT_LINES).lower() or ("port" in tail and "in use" in tail)


def _own_address() -> str:
    """The address at which others reach what is bound to every address of this node."""
    import ray

    return reached_at(EVERY_ADDRESS, ray.util.get_node_ip_address())

"""An engine's server as a run has it: started by the plugin's own command line, spoken to by core's client, ended with its owner."""

from __future__ import annotations

import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from asyncrl.authoring import RunFacts
from asyncrl.host import Host
from asyncrl.rollout.client import EngineClient
from asyncrl.rollout.connection import make_session
from asyncrl.rollout.engine import EnginePlace, ServerSpec
from asyncrl.runtime import child
from asyncrl.testing.models import altered_copy, vocab_size
from asyncrl.training.publication import free_port

REQUEST_SECONDS = 120.0
HEALTH_SECONDS = 30.0  # a server may generate a token for it


class ServerFailed(Exception):
    """The server ended, or did not answer in time; says so with its last log lines."""


class Served:
    """One running server.

    Attributes:
        model: what it was started with.
        other: the same model with other weights.
    """

    def __init__(self, host: Host, run: RunFacts, model: Path) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="asyncrl-suite-")
        folder = Path(self._folder.name)
        self.model = model
        self.other = altered_copy(model, folder / "other")
        self._log = folder / "server.log"
        self.spec = self._describe(host, run)
        self._process: subprocess.Popen[bytes] | None = None
        if self.spec.argv:
            self._process = child.spawn(self.spec.argv, env=self.spec.env, log_file=self._log)
        try:
            self._wait()
        except ServerFailed:
            self.close()
            raise

    def answers(self) -> bool:
        """Whether anything answers at its address."""
        address = urlsplit(self.spec.url)
        try:
            with socket.create_connection((address.hostname, address.port or 80), timeout=5):
                return True
        except OSError:
            return False

    @asynccontextmanager
    async def client(self) -> AsyncIterator[EngineClient]:
        """Yield a client as a run has one, on the event loop that runs."""
        async with make_session() as session:
            client = EngineClient.of_spec(
                "suite",
                self.spec,
                session,
                vocab_size=vocab_size(self.model),
                request_timeout=REQUEST_SECONDS,
                control_timeout=60.0,
                update_timeout=120.0,
            )
            client.version = await client.served_version() or 0
            try:
                yield client
            finally:
                await client.close()

    def end(self) -> None:
        """End the server as its owner does; one that was only attached to goes on."""
        if self._process is not None:
            child.end(self._process)
            self._process = None

    def close(self) -> None:
        """End it and remove its files."""
        self.end()
        self._folder.cleanup()

    def _describe(self, host: Host, run: RunFacts) -> ServerSpec:
        place = EnginePlace(0, self.model, "127.0.0.1", free_port("127.0.0.1"), run.device, run.dtype, run.seed, self._log)
        spec: ServerSpec = host.one("engine_server")(place=place)
        return spec

    def _wait(self) -> None:
        deadline = time.monotonic() + self.spec.start_timeout
        while time.monotonic() < deadline:
            if self._process is not None and (code := self._process.poll()) is not None:
                raise ServerFailed(f"it ended with code {code}:\n{self._tail()}")
            try:
                with urllib.request.urlopen(f"{self.spec.url}/health", timeout=HEALTH_SECONDS):  # noqa: S310 - http, from the plugin itself
                    return
            except OSError:  # it does not listen yet, or is not ready
                time.sleep(0.1)
        raise ServerFailed(f"{self.spec.url}/health did not answer 200 within {self.spec.start_timeout:g} s:\n{self._tail()}")

    def _tail(self) -> str:
        try:
            return "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
        except OSError:
            return "(it wrote no log)"


_KEY = pytest.StashKey[dict[type, "Served | str"]]()


def served(request: pytest.FixtureRequest, suite: type, host: Host, run: RunFacts, model: Path) -> Served | str:
    """Return the server that the rules of a suite share, or why there is none. It ends with the test session at the latest."""
    known = request.config.stash.setdefault(_KEY, {})
    if suite not in known:
        try:
            server = Served(host, run, model)
        except ServerFailed as error:
            known[suite] = str(error)
        else:
            known[suite] = server
            request.session.addfinalizer(server.close)
    return known[suite]

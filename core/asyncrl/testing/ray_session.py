"""The one Ray actor that all suites of a test session share: started when the first rule asks, gone when the session ends."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import pytest

from asyncrl.authoring import RunFacts
from asyncrl.plugins import PluginSpec

TIMEOUT = 300.0
"""Seconds for an answer, the start of Ray included."""


class ActorFailed(Exception):
    """The plugin could not be rebuilt in the actor, or its hook raised there; says what and where."""


class RaySession:
    """A driver process with the actor. The driver ends by itself when this process does, however that happens."""

    def __init__(self) -> None:
        environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "asyncrl.testing.ray_driver"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, name="ray session", daemon=True).start()

    def answer(self, spec: PluginSpec, run: RunFacts, extra: Mapping[str, Any]) -> Any:
        """Have the actor rebuild the plugin and answer one hook. Raises `ActorFailed`."""
        job = {"spec": asdict(spec), "facts": asdict(run), "path": sys.path, "extra": extra}
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            line = self._lines.get(timeout=TIMEOUT)
        except OSError as cause:
            raise ActorFailed(f"the process that drives Ray has ended: {cause}") from cause
        except queue.Empty:
            raise ActorFailed(f"no answer within {TIMEOUT:.0f} s") from None
        if not line:
            raise ActorFailed(f"the process that drives Ray ended with exit code {self._process.wait()}")
        reply = json.loads(line)
        if "error" in reply:
            raise ActorFailed(f"{reply['error']}\n{reply['detail']}")
        return reply["answer"]

    def close(self) -> None:
        """End the driver, and Ray with it."""
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            self._process.wait(60.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")


_KEY = pytest.StashKey[RaySession]()


def shared(request: pytest.FixtureRequest) -> RaySession:
    """Return the session's actor; skips the test where Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install ray")
    stash = request.config.stash
    known = stash.get(_KEY, None)
    if known is None:
        known = stash[_KEY] = RaySession()
        request.session.addfinalizer(known.close)
    return known

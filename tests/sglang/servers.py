"""Real SGLang servers, started by the plugin's own command line."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asyncrl import EnginePlace, RunFacts, ServerSpec
from asyncrl.runtime import child
from asyncrl.training.publication import free_port
from asyncrl_sglang import SGLangEngine, SGLangOptions

PYTHON = Path(os.environ.get("ASYNCRL_SGLANG_VENV") or Path(__file__).parents[2] / ".venv-sglang") / "bin" / "python"
START_SECONDS = 600.0
FACTS = RunFacts(batch_size=1, group_size=1, max_concurrent_samples=64, steps=1)


def interpreter() -> str:
    """The python of the environment that has SGLang."""
    if not PYTHON.exists():
        pytest.fail(f"{PYTHON} is missing: run `make test-sglang`, or name an environment in ASYNCRL_SGLANG_VENV")
    return str(PYTHON)


def describe(model: Path, log: Path, port: int = 0, **options: Any) -> ServerSpec:
    """How the plugin starts a server."""
    engine = SGLangEngine(SGLangOptions(python=interpreter(), **options), FACTS)
    place = EnginePlace(0, model, "127.0.0.1", port or free_port("127.0.0.1"), "cpu", "float32", 0, log)
    return engine.engine_server(place)


class Server:
    """One server. It can be killed, and started again at the same address."""

    def __init__(self, name: str, model: Path, folder: Path) -> None:
        self.name = name
        self.log = folder / f"{name}.txt"
        self.spec = describe(model, self.log, server_args={"enable-metrics": True})
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return self.spec.url

    def start(self) -> None:
        self.process = child.spawn(self.spec.argv, env=self.spec.env, log_file=self.log)

    def wait(self) -> None:
        """Wait until it is healthy."""
        assert self.process is not None
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=20):
                    return
            except OSError:  # it does not listen yet, or is not ready
                time.sleep(0.2)
        raise AssertionError(f"{self.name} did not start: {self.log.read_text()[-3000:]}")

    def call(self, path: str, body: Any = None) -> Any:
        """GET without a body, else POST; return the JSON that came back. Anything but 200 fails."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        try:
            with urllib.request.urlopen(
                urllib.request.Request(self.url + path, data=data, headers=headers), timeout=60
            ) as answer:
                content = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{path} answered {error.code}: {error.read().decode()[:500]}") from None
        return json.loads(content) if content[:1] in (b"{", b"[") else content.decode()

    def count(self, metric: str) -> int:
        """A counter of the server's own, 0 while it has counted nothing."""
        found = re.findall(rf"^sglang:{metric}{{.*}} (\S+)$", self.call("/metrics"), re.MULTILINE)
        return int(sum(map(float, found)))

    def processes(self) -> list[int]:
        """Process ids of the server and all that it started, without the supervisor."""
        return [pid for pid in descendants(self.process.pid) if pid != self.process.pid] if self.process else []

    def send(self, number: int) -> None:
        """Send a signal to every process of the server."""
        for pid in self.processes():
            os.kill(pid, number)

    def kill(self) -> None:
        """kill -9, all at once, as when a machine goes."""
        self.send(signal.SIGKILL)
        assert self.process is not None
        self.process.wait(60)

    def reset(self, model: Path) -> None:
        """Bring it back to where it began: alive, running, idle, serving `model` as version 0 with empty caches."""
        if self.process is None or self.process.poll() is not None:
            self.start()
            self.wait()
        self.call("/abort_request", {"rid": "", "abort_all": True})
        self.call("/continue_generation", {})
        self.call("/update_weights_from_disk", {"model_path": str(model), "weight_version": "0", "flush_cache": True})
        self.call("/flush_cache?timeout=20", {})

    def end(self) -> None:
        if self.process is not None:
            child.end(self.process)
            self.process = None


def descendants(root: int) -> Iterator[int]:
    """A process and everything below it."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                parents[int(entry.name)] = int(fields[1])
    found = [root]
    for pid in found:
        yield pid
        found += [other for other, parent in parents.items() if parent == pid]

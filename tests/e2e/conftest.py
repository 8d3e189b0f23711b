"""Runs the real command in a process of its own, and looks for what it left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "examples" / "demo.toml"
PATIENCE = 240.0


@dataclass
class Run:
    """One `asyncrl train`, by its process and its run directory."""

    process: subprocess.Popen[str]
    directory: Path
    mark: str
    publish_dir: Path
    output: str = field(default="")

    def wait(self) -> int:
        self.output, _ = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode

    def wait_for_step(self, step: int) -> None:
        """Wait until metrics of `step` are written."""
        self.wait_until(lambda: any(line["step"] >= step for line in self.metrics()), f"step {step}")

    def wait_until(self, condition: Any, what: str, every: float = 0.1) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert self.process.poll() is None, f"it ended while waiting for {what}:\n{self.process.communicate()[0]}"
            assert time.monotonic() < deadline, f"waited {PATIENCE} s for {what}"
            time.sleep(every)

    def metrics(self, axis: str = "train_step") -> list[dict[str, Any]]:
        return [line for line in lines(self.directory / "metrics.jsonl") if line["axis"] == axis]

    def lines(self, name: str) -> list[dict[str, Any]]:
        """The whole lines of a file of the run directory."""
        return lines(self.directory / name)

    def evals(self) -> list[dict[str, Any]]:
        return lines(self.directory / "evals.jsonl")

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads((self.directory / "summary.json").read_text())

    def left_behind(self) -> list[str]:
        """Processes and shared memory of the run that are still there after its janitor had time."""
        deadline = time.monotonic() + 30
        while (left := list(processes_with(self.mark))) and time.monotonic() < deadline:
            time.sleep(0.2)
        return left + [str(path) for path in self.publish_dir.iterdir()]


def lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def processes_with(mark: str) -> Iterator[str]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark.encode() in (entry / "environ").read_bytes():
                    yield f"{entry.name}: {(entry / 'cmdline').read_bytes().replace(bytes(1), b' ').decode()[:200]}"
            except OSError:
                continue


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the demo's model is made once for all tests; kept between sessions when the variable names a place."""
    return Path(os.environ.get("ASYNCRL_TEST_CACHE") or tmp_path_factory.mktemp("cache"))


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Any]:
    """Return a function that starts an `asyncrl` command on a run directory."""
    started: list[Run] = []

    def begin(*arguments: str, directory: Path, env: dict[str, str] | None = None) -> Run:
        mark = f"mark-{uuid.uuid4().hex}"
        publish_dir = Path("/dev/shm") / mark  # shared memory of its own, so that what is left can be told apart
        publish_dir.mkdir()
        process = subprocess.Popen(
            [sys.executable, "-m", "asyncrl", arguments[0], "--publish-dir", str(publish_dir), *arguments[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **(env or {}), "ASYNCRL_TEST_MARK": mark, "OMP_NUM_THREADS": "1"},
            cwd=tmp_path,
        )
        started.append(Run(process, directory, mark, publish_dir))
        return started[-1]

    yield begin
    for run in started:
        if run.process.poll() is None:
            run.process.send_signal(signal.SIGKILL)
            run.process.wait()
        shutil.rmtree(run.publish_dir, ignore_errors=True)


@pytest.fixture
def start(launch: Any, tmp_path: Path, cache_dir: Path) -> Any:
    """Return a function that starts `asyncrl train` on the demo with more flags."""

    def begin(*flags: str, file: Path = DEMO, name: str = "run", env: dict[str, str] | None = None) -> Run:
        runs = tmp_path / "runs"
        where = ("--name", name, "--runs-dir", str(runs), "--cache-dir", str(cache_dir))
        return launch("train", str(file), *where, *flags, directory=runs / name, env=env)

    return begin


@pytest.fixture
def resume(launch: Any) -> Any:
    """Return a function that starts `asyncrl resume` on a former run."""

    def begin(run: Run, *flags: str, env: dict[str, str] | None = None) -> Run:
        return launch("resume", str(run.directory), *flags, directory=run.directory, env=env)

    return begin

"""The real command in a process of its own: what it writes, which processes it has, and what it leaves behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "examples" / "demo.toml"
PATIENT = ("--start-timeout", "900", "--engine.start-timeout", "900", "--publish-timeout", "900", "--engine-hang-timeout", "300")
"""Flags with which a run is given all the time that a busy machine takes; none of it is needed on a quiet one."""
SHARED_MEMORY = Path("/dev/shm")
PATIENCE = 600.0
CLEARING_SECONDS = 30.0
"""How long a run's janitor may take."""

VICTIMS: dict[str, Callable[[bytes], bool]] = {
    "engine": lambda command: b"asyncrl_torch.server" in command and b"asyncrl.runtime.child" not in command,
    "engine actor": lambda command: command.startswith(b"ray::EngineActor"),
    "rollout actor": lambda command: command.startswith(b"ray::RolloutActor"),
    "trainer rank": lambda command: command.startswith(b"ray::TrainerActor"),
}
"""How a run's processes are recognised by their command lines."""


def shared_cache(folders: Any) -> Path:
    """Where the demo's model is made once for all tests, by whichever process needs it first.

    A folder of the session of pytest's `tmp_path_factory`; kept between sessions when ASYNCRL_TEST_CACHE names a place.
    """
    if named := os.environ.get("ASYNCRL_TEST_CACHE"):
        return Path(named)
    session = folders.getbasetemp()
    return Path(session.parent if "PYTEST_XDIST_WORKER" in os.environ else session) / "cache"


@dataclass
class Run:
    """One command, by its process and its run directory. `mark` is in the environment of every process of it; directories for what is
    short-lived are its own, so that whatever is left can be told apart."""

    process: subprocess.Popen[str]
    directory: Path
    mark: str
    publish_dir: Path
    staging_dir: Path
    temp_dir: Path
    patience: float = PATIENCE
    output: str = field(default="")

    def wait(self) -> int:
        self.output, _ = self.process.communicate(timeout=self.patience)
        return self.process.returncode

    def wait_for_step(self, step: int) -> None:
        """Wait until metrics of `step` are written."""
        self.wait_until(lambda: self.last_step() >= step, f"step {step}")

    def wait_until(self, condition: Callable[[], Any], what: str, every: float = 0.1) -> None:
        deadline = time.monotonic() + self.patience
        while not condition():
            assert self.process.poll() is None, f"it ended while waiting for {what}:\n{self.process.communicate()[0]}"
            assert time.monotonic() < deadline, f"waited {self.patience} s for {what}"
            time.sleep(every)

    def metrics(self, axis: str = "train_step") -> list[dict[str, Any]]:
        return [line for line in self.lines("metrics.jsonl") if line["axis"] == axis]

    def last_step(self) -> int:
        """The last step whose metrics are written."""
        return max((line["step"] for line in self.metrics()), default=0)

    def lines(self, name: str) -> list[dict[str, Any]]:
        """The whole lines of a file of the run directory."""
        return lines(self.directory / name)

    def evals(self) -> list[dict[str, Any]]:
        return self.lines("evals.jsonl")

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads((self.directory / "summary.json").read_text())

    def processes(self, kind: str, log: str = "") -> list[int]:
        """The run's processes of a kind in `VICTIMS`; with `log`, those whose output goes to a log of this name."""
        return [pid for pid, command in processes_with(self.mark) if VICTIMS[kind](command) and (not log or _log_of(pid) == log)]

    def one(self, kind: str, log: str = "") -> int:
        """The only such process."""
        (pid,) = self.processes(kind, log)
        return pid

    def left_behind(self) -> list[str]:
        """Processes, shared memory and temporary files of the run that are still there after its janitor had time.

        A port is left only with a process that holds it.
        """
        deadline = time.monotonic() + CLEARING_SECONDS
        while (left := list(processes_with(self.mark))) and time.monotonic() < deadline:
            time.sleep(0.2)
        files = [path for place in (self.publish_dir, self.staging_dir, self.temp_dir) for path in place.iterdir()]
        return [f"{pid}: {_shown(command)}" for pid, command in left] + [str(path) for path in files]

    def kill(self) -> None:
        """End the command as kill -9 does, and take its output."""
        self.process.send_signal(signal.SIGKILL)
        self.output, _ = self.process.communicate()

    def clear(self) -> None:
        """End it if it still runs, and remove the directories made for it."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        for place in (self.publish_dir.parent, self.temp_dir):
            shutil.rmtree(place, ignore_errors=True)


def begin(
    command: str, *arguments: str, directory: Path, cwd: Path, env: Mapping[str, str] | None = None, patience: float = PATIENCE
) -> Run:
    """Start ``asyncrl COMMAND ARGUMENTS``, whose run directory is or will be `directory`."""
    mark = f"mark-{uuid.uuid4().hex}"
    publish_dir, staging_dir = (SHARED_MEMORY / mark / name for name in ("publish", "staging"))
    temp_dir = Path(tempfile.mkdtemp(prefix="m-", dir="/tmp"))  # short: sockets are made in it
    for place in (publish_dir, staging_dir):
        place.mkdir(parents=True)
    places = ("--publish-dir", str(publish_dir), "--staging-dir", str(staging_dir))
    own = {"ASYNCRL_TEST_MARK": mark, "TMPDIR": str(temp_dir), "OMP_NUM_THREADS": "1"}
    own["RAY_worker_niceness"] = "0"  # Ray would run actors at the lowest priority, which starves them beside other tests
    own["TORCHINDUCTOR_CACHE_DIR"] = str(cwd / "inductor")  # torch keeps it for the next process on purpose
    process = subprocess.Popen(
        [sys.executable, "-m", "asyncrl", command, *places, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **own, **(env or {})},
        cwd=cwd,
    )
    return Run(process, directory, mark, publish_dir, staging_dir, temp_dir, patience)


def lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file; the last one may be half written, or its writer killed."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def processes_with(mark: str) -> Iterator[tuple[int, bytes]]:
    """Id and command line, separated by zero bytes, of the processes that have the mark in their environment."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark.encode() in (entry / "environ").read_bytes():
                    yield int(entry.name), (entry / "cmdline").read_bytes()
            except OSError:  # it ended meanwhile
                continue


def _log_of(pid: int) -> str:
    """The name of the file into which the process's supervisor (`asyncrl.runtime.child`) writes what it says."""
    try:
        supervisor = psutil.Process(pid).parent()
        words = supervisor.cmdline() if supervisor else []
    except psutil.Error:
        return ""
    module = "asyncrl.runtime.child"
    return Path(words[words.index(module) + 1]).stem if module in words else ""


def _shown(command: bytes) -> str:
    return command.replace(bytes(1), b" ").decode()[:200]

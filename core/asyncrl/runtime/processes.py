"""The processes of a run on one machine: which there are, in what state, and the stacks of each, as text."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from asyncrl.stacks import END, PREFIX, SIGNAL, key_of

PATIENCE_SECONDS = 5.0
"""How long processes may take to write their stacks."""
OTHERS_SECONDS = 10.0
"""How long py-spy may take for a process that does not write them."""
STATES = {"R": "running", "S": "sleeping", "D": "waiting for a device", "T": "stopped", "t": "stopped by a debugger", "Z": "dead"}
RAYS_OWN = (
    "raylet",
    "gcs_server",
    "ray::IDLE",
    "ray::DashboardAgent",
    "ray::RuntimeEnvAgent",
    "ray/_private",
    "ray/dashboard",
    "ray/autoscaler",
)
WORDS, LONGEST_COMMAND = 3, 120


@dataclass(frozen=True)
class Process:
    """One process.

    Attributes:
        who: what it said of itself, or the first words of its command: there may be keys in the others.
        state: as in `/proc`: ``R``, ``S``, ``D``, ``T`` …
        memory: descriptor of its file for stacks; -1 when it has none.
    """

    pid: int
    parent: int
    who: str
    state: str
    memory: int

    @property
    def stopped(self) -> bool:
        """Whether it was stopped (SIGSTOP, or a debugger), so that it can do nothing at all."""
        return self.state in ("T", "t")

    @property
    def speaks(self) -> bool:
        return self.memory >= 0

    def __str__(self) -> str:
        return f"{self.who} (process {self.pid})"


@dataclass(frozen=True)
class Stacks:
    """A process and its stacks as text, '' where it has none to show."""

    process: Process
    text: str


def processes_of(run_dir: str, controller: int) -> list[Process]:
    """Return the processes of a run on this machine: what names the run as its own, the controller, and whatever they started."""
    known = {pid: one for entry in Path("/proc").iterdir() if entry.name.isdigit() and (one := _look(pid := int(entry.name)))}
    key = key_of(run_dir)
    keys = {pid: _file(pid)[1] for pid, one in known.items() if one.speaks}
    found: set[int] = {pid for pid in known if pid == controller or keys.get(pid) == key}
    while more := {pid for pid, one in known.items() if one.parent in found and pid not in found}:
        found |= more
    return [known[pid] for pid in sorted(found)]


def stacks_of(processes: Iterable[Process]) -> list[Stacks]:
    """Return the stacks of each process: written by itself, or read by `py-spy` where that is installed and permitted."""
    processes = list(processes)
    asked = [one for one in processes if one.speaks and not one.stopped and _ask(one)]
    deadline = time.monotonic() + PATIENCE_SECONDS
    while any(not _read(one).endswith(END) for one in asked) and time.monotonic() < deadline:
        time.sleep(0.05)
    return [Stacks(one, _own(one) if one in asked else _foreign(one)) for one in processes]


def _own(process: Process) -> str:
    data = _read(process)
    text = data.removesuffix(END).decode(errors="replace").strip()
    if data.endswith(END):
        return text
    return f"{text}\n(nothing of its waits and tasks: no thread of Python gets its turn there)"


def _foreign(process: Process) -> str:
    if process.stopped or any(word in process.who for word in RAYS_OWN) or "python" not in _executable(process.pid):
        return ""
    spy = shutil.which("py-spy", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if spy is None:
        return "(no stack: it does not write its own, and py-spy is not installed)"
    try:
        told = subprocess.run([spy, "dump", "--pid", str(process.pid)], capture_output=True, text=True, timeout=OTHERS_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"(no stack: {error})"
    stacks = "".join(
        told.stdout.rpartition("\nPython v")[1:]
    ).strip()  # before it is the whole command, in which there may be keys
    return stacks if told.returncode == 0 else f"(no stack: py-spy says {told.stderr.strip()[-300:]})"


def _ask(process: Process) -> bool:
    """Empty its file and send the signal, if it is still the one that catches it."""
    try:
        caught = int(_status(process.pid)["SigCgt"], 16)
        if not caught >> (SIGNAL - 1) & 1 or _file(process.pid)[0] != process.memory:
            return False
        os.truncate(f"/proc/{process.pid}/fd/{process.memory}", 0)
        os.kill(process.pid, SIGNAL)
    except (OSError, KeyError, ValueError):
        return False
    return True


def _read(process: Process) -> bytes:
    try:
        return Path(f"/proc/{process.pid}/fd/{process.memory}").read_bytes()
    except OSError:
        return END  # it has ended


def _look(pid: int) -> Process | None:
    try:
        status = _status(pid)
        if int(status["Uid"].split()[0]) != os.getuid():
            return None
        memory, _, who = _file(pid)
        return Process(pid, int(status["PPid"]), who or _command(pid), status["State"][0], memory)
    except (OSError, KeyError, ValueError):
        return None


def _file(pid: int) -> tuple[int, str, str]:
    """Return the descriptor of a process's file for stacks, its run's key, and who it is; (-1, '', '') if it has none of its own."""
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                target = os.readlink(link)
                if not target.startswith(f"/memfd:{PREFIX}:"):
                    continue
                _, key, owner, who = target.removeprefix("/memfd:").removesuffix(" (deleted)").split(":", 3)
                if int(owner) == pid:
                    return int(link.name), key, who
    return -1, "", ""


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _command(pid: int) -> str:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    return " ".join(words[:WORDS]).strip()[:LONGEST_COMMAND] or Path(f"/proc/{pid}/comm").read_text().strip()


def _executable(pid: int) -> str:
    try:
        return Path(os.readlink(f"/proc/{pid}/exe")).name
    except OSError:
        return ""


def waits_in(pid: int) -> str:
    """Return where in the kernel a process waits, '' where that is not told."""
    try:
        return Path(f"/proc/{pid}/wchan").read_text().strip("0\n ")
    except OSError:
        return ""

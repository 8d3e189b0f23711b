"""Looks on while a run runs: when nothing has moved for a while it says what is waited for, and writes the stacks of every process.

It only tells. What ends a wait is the wait's own deadline.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from asyncrl.runtime.processes import STATES, Stacks, processes_of, stacks_of, waits_in
from asyncrl.stacks import WAITS_FOR, register, unregister, watch_loop

log = logging.getLogger("asyncrl")
LOOK_SECONDS = 0.5
SAY_SECONDS = 5.0
MOST_WAITS = 6
ASKED = "the stacks were asked for (SIGUSR1)"


class Watchdog:
    """A thread of the controller. Use it as a context manager, on the controller's event loop.

    It writes `logs/stacks-TIME.txt` when `progress` has not changed for `timeout` seconds (0: never), again after twice that time, four
    times that time and so on, and whenever the controller gets SIGUSR1.

    Args:
        run_dir: the run's directory.

    Attributes:
        elsewhere: returns (name, report) of each other machine of the run, within seconds.
    """

    def __init__(self, run_dir: Path, timeout: float) -> None:
        self.elsewhere: Callable[[], Sequence[tuple[str, str]]] = lambda: ()
        self._run_dir = run_dir
        self._stall = Stall(timeout)
        self._progress: Callable[[], object] | None = None
        self._loop = asyncio.get_running_loop()
        self._asked = False
        self._writing = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        register("controller", str(self._run_dir), told=self._told)
        watch_loop()
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._closed.set()
        self._thread.join(SAY_SECONDS)
        unregister()

    def begin(self, progress: Callable[[], object]) -> None:
        """Expect from now on that `progress`, called in another thread, returns something else again and again."""
        self._progress = progress

    def write(self, why: str) -> str:
        """Write the stacks of every process; return what is to be said of it, in one line."""
        self._writing = True
        try:
            found = stacks_of(processes_of(str(self._run_dir), os.getpid()))
            reports = [(socket.gethostname(), report(found)), *self.elsewhere()]
            said = "; ".join([why, *summary("\n".join(text for _, text in reports))])
            file = self._file()
            try:
                file.parent.mkdir(exist_ok=True)
                file.write_text("\n\n".join([said, *(f"#### {host}\n\n{text}" for host, text in reports)]) + "\n")
            except OSError as error:
                return f"{said}; their stacks can't be written to {file}: {error.strerror}"
            return f"{said}; their stacks are in {file}"
        finally:
            self._writing = False

    def _told(self) -> None:
        """This process was sent the signal, by this watchdog or by somebody else."""
        self._asked = self._asked or not self._writing

    def _watch(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            why = ""
            if self._asked:
                self._asked, why = False, ASKED
            elif self._progress is not None:
                why = self._stall.look(self._progress(), time.monotonic())
            if why:
                self._say(self.write(why))

    def _say(self, line: str) -> None:
        """Log it where logging belongs, or on stderr if the event loop stands still."""
        said = threading.Event()

        def say() -> None:
            if not said.is_set():
                said.set()
                log.warning("%s", line)

        try:
            self._loop.call_soon_threadsafe(say)
        except RuntimeError:  # closed
            return
        if not said.wait(SAY_SECONDS) and not said.is_set():
            said.set()
            print(f"asyncrl: {line}; the command's own event loop stands still", file=sys.stderr, flush=True)

    def _file(self) -> Path:
        return self._run_dir / "logs" / f"stacks-{time.strftime('%Y%m%d-%H%M%S')}.txt"


class Stall:
    """Tells when something has stood still for `timeout` seconds (0: never), and for twice that time, four times and so on."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._before: object = self
        self._moved = 0.0
        self._next = timeout

    def look(self, progress: object, now: float) -> str:
        """Return what there is to say, or ''."""
        if progress != self._before:
            self._before, self._moved, self._next = progress, now, self._timeout
        seconds = now - self._moved
        if not self._timeout or seconds < self._next:
            return ""
        while self._next <= seconds:
            self._next *= 2
        return f"nothing has moved for {seconds:.0f} s: no step, no token, no group, no publication, no evaluation"


def report(found: Sequence[Stacks]) -> str:
    """Return the text about the processes of one machine."""
    sections = []
    for process, text in ((one.process, one.text) for one in found):
        state = STATES.get(process.state, process.state)
        where = f" in {waits}" if process.state in "SD" and (waits := waits_in(process.pid)) else ""
        sections.append(f"== {process}, child of {process.parent}: {state}{where}\n{text}".rstrip())
    return "\n\n".join(sections)


def summary(text: str) -> list[str]:
    """Return what is waited for, and who was stopped, out of reports."""
    waits: list[str] = []
    stopped: list[str] = []
    for line in text.splitlines():
        if line.startswith(WAITS_FOR) and (wait := line.removeprefix(WAITS_FOR)) not in waits:
            waits.append(wait)
        if line.startswith("== ") and STATES["T"] in line.rpartition(": ")[2]:
            stopped.append(line.removeprefix("== ").partition(", child of ")[0])
    more = [f"and {len(waits) - MOST_WAITS} more"] if len(waits) > MOST_WAITS else []
    said = [f"it waits for: {', '.join(waits[:MOST_WAITS] + more)}"] if waits else []
    return said + ([f"stopped: {', '.join(stopped)}"] if stopped else [])


def report_of(run_dir: str) -> tuple[str, str]:
    """Return name and report of the machine that this runs on; for the machines where the controller is not."""
    return socket.gethostname(), report(stacks_of(processes_of(run_dir, -1)))

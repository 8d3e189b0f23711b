"""What every Python process of a run is ready for: on SIGUSR1 it writes its stacks, waits and asyncio tasks where others can read them.

The place is a file in memory (memfd) that the process holds open; `runtime/processes.py` finds it below `/proc`. So nothing is left on a
disk, a full disk does not matter, and a process has to answer nothing.

The interpreter's own signal handler writes the stacks (`faulthandler`): it needs neither the event loop nor the interpreter lock. A
thread adds the rest as soon as it gets its turn.
"""

from __future__ import annotations

import asyncio
import faulthandler
import fcntl
import hashlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from asyncrl.waits import current_waits

SIGNAL = signal.SIGUSR1
PREFIX = "asyncrl-stacks"
END = b"-- end of the stacks --\n"
WAITS_FOR = "waits for: "
LOOK_SECONDS = 0.5

_registered: _Stacks | None = None


def register(who: str, run_dir: str = "", *, told: Callable[[], None] | None = None) -> None:
    """Have this process write its stacks on SIGUSR1. Call it once, at the start; a second call does nothing.

    Args:
        who: what the process is, such as ``trainer rank 0``.
        run_dir: the run's directory, by which its processes are found; a process that another one of the run started needs none.
        told: called in a thread each time the stacks were written.
    """
    global _registered
    if _registered is None and hasattr(os, "memfd_create"):
        _registered = _Stacks(who, run_dir, told)


def watch_loop() -> None:
    """Have the tasks of the running event loop written too."""
    if _registered is not None:
        _registered.loop = asyncio.get_running_loop()


def unregister() -> None:
    """Undo `register`."""
    global _registered
    if _registered is not None:
        _registered.close()
        _registered = None


def key_of(run_dir: str) -> str:
    """Return the short word by which the processes of a run know each other."""
    return hashlib.sha256(run_dir.encode()).hexdigest()[:12] if run_dir else "-"


class _Stacks:
    def __init__(self, who: str, run_dir: str, told: Callable[[], None] | None) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._told = told
        self._file = os.memfd_create(f"{PREFIX}:{key_of(run_dir)}:{os.getpid()}:{who}"[:240])
        fcntl.fcntl(self._file, fcntl.F_SETFL, os.O_APPEND)  # whoever reads it empties it before
        self._closed = threading.Event()
        faulthandler.register(SIGNAL, file=self._file, all_threads=True)
        self._thread = threading.Thread(target=self._add_to_it, name="stacks", daemon=True)
        self._thread.start()

    def close(self) -> None:
        faulthandler.unregister(SIGNAL)
        self._closed.set()
        self._thread.join(LOOK_SECONDS * 10)
        os.close(self._file)

    def _add_to_it(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            size = os.fstat(self._file).st_size
            if size and os.pread(self._file, len(END), max(0, size - len(END))) != END:
                os.write(self._file, "\n".join(["", *self._python_part(), ""]).encode(errors="replace"))
                if self._told is not None:  # before the end, so that whoever waits for that knows that this was called
                    self._told()
                os.write(self._file, END)

    def _python_part(self) -> list[str]:
        lines = [WAITS_FOR + wait for wait in current_waits()]
        return lines + (describe_tasks(self.loop) if self.loop is not None else [])


def describe_tasks(loop: asyncio.AbstractEventLoop) -> list[str]:
    """Return the tasks of a loop, each with the chain of what it awaits, innermost last; equal ones once. Safe in another thread."""
    for _ in range(100):
        try:
            tasks = asyncio.all_tasks(loop)
            break
        except RuntimeError:  # one began meanwhile
            time.sleep(0.001)
    else:
        return ["asyncio: too many tasks begin and end"]
    found = Counter(_chain(task) for task in tasks)
    lines = [f"asyncio: {len(tasks)} tasks, {loop!r}"]
    for chain, count in found.most_common():
        lines += [f"{count} × task:", *chain]
    return lines


def _chain(task: asyncio.Task[Any]) -> tuple[str, ...]:
    lines: list[str] = []
    step: Any = task.get_coro()
    while step is not None:
        frame = _first(step, "cr_frame", "gi_frame", "ag_frame")
        if frame is None:
            lines.append(f"  awaits {type(step).__module__}.{type(step).__qualname__}")
            break
        lines.append(f'  File "{frame.f_code.co_filename}", line {frame.f_lineno}, in {frame.f_code.co_qualname}')
        step = _first(step, "cr_await", "gi_yieldfrom", "ag_await")
    return tuple(lines)


def _first(step: Any, *names: str) -> Any:
    return next((value for name in names if (value := getattr(step, name, None)) is not None), None)

"""Whether a run is alive: a lock on a file of its directory, which the kernel gives back however the run ends."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from pathlib import Path

from asyncrl.errors import RunDirectoryError

LOCK_FILE = "run.lock"
CLEARING_SECONDS = 60.0
"""How long the janitor of a killed run may take."""


class RunLock:
    """Held by the command that runs in `directory`, and by its janitor until nothing of the run is left."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / LOCK_FILE
        self.descriptor = -1

    def take(self) -> None:
        """Take the lock, waiting for the janitor of a run that was killed.

        Raises:
            RunDirectoryError: a process that is alive holds it, or the file can't be written.
        """
        try:
            self.descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            deadline = time.monotonic() + CLEARING_SECONDS
            while not self._try():
                holder = self._holder()
                if _is_alive(holder) or time.monotonic() > deadline:
                    self.release()
                    raise RunDirectoryError(
                        f"the run {self._path.parent} is still alive: process {holder.get('pid', '?')} on "
                        f"{holder.get('host', 'an unknown machine')}",
                        remedy="stop it first",
                    )
                time.sleep(0.1)
            os.ftruncate(self.descriptor, 0)
            os.pwrite(self.descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
        except OSError as cause:
            self.release()
            raise RunDirectoryError(f"{self._path} can't be locked: {cause.strerror}") from cause

    def release(self) -> None:
        """Give it back; without the janitor's copy of it the run counts as ended."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _try(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False

    def _holder(self) -> dict[str, object]:
        try:
            holder = json.loads(os.pread(self.descriptor, 4096, 0))
            return holder if isinstance(holder, dict) else {}
        except (OSError, ValueError):  # just being written
            return {}


def _is_alive(holder: dict[str, object]) -> bool:
    """Whether the process that took the lock is there, as far as this machine can tell."""
    pid = holder.get("pid")
    if holder.get("host") != socket.gethostname() or not isinstance(pid, int):
        return bool(holder)
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z" if Path("/proc").is_dir() else True
    except PermissionError:
        return True
    except (ProcessLookupError, FileNotFoundError):  # the latter when it ended just now
        return False

"""Ends what a run left behind, also when it was killed: `python -m asyncrl.runtime.janitor MARKER DIR …`.

It waits for its stdin to close, which the kernel does when the controller ends in any way. Then it ends every process of the run that is
still there, and removes the run's temporary directories, those of its servers too. A process belongs to the run if it inherited the run's
marker in its environment or has a file open in one of the directories.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from asyncrl.runtime.shared_files import remove_shared_files

VARIABLE = "ASYNCRL_RUN"
PATIENCE_SECONDS = 3.0
"""How long processes of a dead run may take to end by themselves."""


def temporary_prefix(marker: str) -> str:
    """Return how the name of a temporary directory begins that a process of a run has made for itself."""
    return f"asyncrl-{marker or 'server'}-"


class Janitor:
    """Marks this process's future children and holds the pipe; `close()` returns when nothing is left.

    Args:
        directories: what is removed at the end.
        holding: descriptors that stay open until nothing is left, such as the run's lock.
    """

    def __init__(self, directories: Sequence[Path], holding: Sequence[int] = ()) -> None:
        marker = secrets.token_hex(8)
        environment = {key: value for key, value in os.environ.items() if key != VARIABLE}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "asyncrl.runtime.janitor", marker, *map(str, directories)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=environment,
            pass_fds=holding,
        )
        os.environ[VARIABLE] = marker

    def close(self) -> None:
        assert self._process.stdin is not None
        os.environ.pop(VARIABLE, None)
        self._process.stdin.close()
        self._process.wait(PATIENCE_SECONDS + 30)


def processes_of(marker: str, directories: Sequence[str], spared: frozenset[int]) -> Iterator[int]:
    """Yield the ids of the run's processes."""
    needle = f"{VARIABLE}={marker}".encode()
    prefixes = tuple(f"{name.rstrip('/')}/" for name in directories)
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in spared:
            continue
        try:
            if needle in (entry / "environ").read_bytes().split(b"\0") or any(
                os.readlink(link).startswith(prefixes) for link in (entry / "fd").iterdir()
            ):
                yield int(entry.name)
        except OSError:  # it ended meanwhile, or is another user's
            continue


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    marker, directories = sys.argv[1], sys.argv[2:]
    spared = frozenset({os.getpid(), os.getppid()})
    while os.read(0, 64):
        pass
    deadline = time.monotonic() + PATIENCE_SECONDS
    while left := list(processes_of(marker, directories, spared)):
        if time.monotonic() > deadline:
            for process in left:
                try:
                    os.kill(process, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        time.sleep(0.1)
    of_servers = list(Path(tempfile.gettempdir()).glob(f"{temporary_prefix(marker)}*"))
    for server in of_servers:
        remove_shared_files(server)
    for name in (*directories, *map(str, of_servers)):
        shutil.rmtree(name, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

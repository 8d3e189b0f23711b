"""Removes a run's temporary directories after the run, also when it was killed: `python -m asyncrl.runtime.janitor DIR …`.

It waits for its stdin to close, which the kernel does when the controller ends in any way. What was not removed by then is removed here.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

SETTLE_SECONDS = 5.0
"""How long processes of a killed run may take to notice, and go on writing."""


class Janitor:
    """Holds the pipe. `close()` when the directories were removed in the orderly way."""

    def __init__(self, directories: Sequence[Path]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "asyncrl.runtime.janitor", *map(str, directories)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(SETTLE_SECONDS + 10)


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 64):
        pass
    paths = [Path(name) for name in sys.argv[1:]]
    deadline = time.monotonic() + SETTLE_SECONDS
    orderly = not any(path.exists() for path in paths)
    while not orderly and time.monotonic() < deadline:
        for path in paths:
            shutil.rmtree(path, ignore_errors=True)
        time.sleep(0.2)
    return 0


if __name__ == "__main__":
    sys.exit(main())

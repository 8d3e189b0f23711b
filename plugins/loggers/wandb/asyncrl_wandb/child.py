"""The process that talks to W&B: `python -m asyncrl_wandb.child`, JSON lines on stdin, reports on stdout.

W&B's own calls may block for minutes, also at interpreter exit, when its server does not answer. Here they block nobody: the controller
ends this process when its time is up, and a controller that was killed is missed soon.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from asyncrl.runtime.janitor import VARIABLE, processes_of

from asyncrl_wandb.link import SCRATCH
from asyncrl_wandb.session import Session

ORPHAN_SECONDS = 8.0
"""What W&B gets to take the last records when the controller was killed."""
WATCH_SECONDS = 0.5


def main() -> int:
    """Return the exit code: 0 unless W&B could not start."""
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever W&B prints is no report

    def report(**message: Any) -> None:
        channel.write(json.dumps(message) + "\n")

    first = sys.stdin.buffer.readline()
    if not first:
        return 1
    start = json.loads(first)["start"]
    atexit.register(_tidy)  # before W&B registers what it does at the end, so it comes after that
    threading.Thread(target=_watch, args=(start["controller"],), daemon=True).start()
    try:
        session = Session(start)
    except BaseException as error:
        report(failed=f"{type(error).__name__}: {str(error).strip() or 'no reason given'}")
        return 1
    report(started=session.url, directory=session.directory)
    for line in sys.stdin.buffer:
        ((kind, content),) = json.loads(line).items()
        try:
            getattr(session, kind)(*content)
        except Exception as error:
            report(rejected=f"{type(error).__name__}: {error}")
    try:
        session.finish()
    except TimeoutError:
        report(late=True)
    return 0


def _watch(controller: int) -> None:
    """Wait until the controller is gone, then see to it that nothing of W&B's stays."""
    while os.getppid() == controller:
        time.sleep(WATCH_SECONDS)
    time.sleep(ORPHAN_SECONDS)
    for process in processes_of(os.environ[VARIABLE], [], frozenset({os.getpid()})):
        os.kill(process, signal.SIGKILL)
    _tidy()
    os._exit(1)


def _tidy() -> None:
    """Remove this process's folder for temporary files; a controller that was killed can't."""
    scratch = Path(os.environ["TMPDIR"])
    if scratch.name.startswith(SCRATCH):
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())

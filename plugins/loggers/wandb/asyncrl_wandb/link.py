"""The controller's end of the W&B process: a bounded queue, and the one thread that ever waits for that process."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asyncrl.runtime.janitor import VARIABLE, processes_of

END = "end"
TICK_SECONDS = 0.2
QUIET_SECONDS = 3.0
LAST_CHANCE_SECONDS = 5.0
"""For a server that has not answered when the run ends; after that the run is still to be written offline."""
KILL_SECONDS = 5.0
SCRATCH = "asyncrl-wandb-"
"""Begins the name of the process's folder for temporary files: W&B leaves some in it, sockets and tables, whichever way it ends."""

log = logging.getLogger("asyncrl")


def has_no_room(directory: str) -> bool:
    """Whether the disk that a directory is on is known to be full."""
    try:
        return shutil.disk_usage(directory).free == 0
    except OSError:
        return False


class Link:
    """Starts the process and hands it records in order. No method but `end` waits for anything.

    Args:
        start: what `Session` takes, without the mode; JSON-able.
        modes: W&B modes to try, one after the other.
        log_file: where the process's output goes.
        capacity: records that may wait.
        start_seconds: time in which W&B's server must have answered.
    """

    def __init__(
        self, start: dict[str, Any], *, modes: Sequence[str], log_file: Path, capacity: int, start_seconds: float
    ) -> None:
        self.failed = False
        self.rejected = 0
        """Records that W&B itself refused."""
        self._start = start
        self._modes = modes
        self._log_file = log_file
        self._start_seconds = start_seconds
        self._queue: queue.Queue[tuple[str, Any]] = queue.Queue(capacity)
        self._notes: deque[tuple[int, str]] = deque()
        self._deadline = self._fall_back_at = float("inf")
        self._killed = False
        self._marker = f"wandb-{secrets.token_hex(8)}"
        self._directory = start["dir"]
        self._scratch = ""
        self._thread = threading.Thread(target=self._run, name="wandb", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Records in the queue."""
        return self._queue.qsize()

    def send(self, kind: str, content: Sequence[Any]) -> bool:
        """Queue a call of a method of `Session` with its arguments; returns False when it was dropped."""
        if self.failed:
            return False
        try:
            self._queue.put_nowait((kind, content))
        except queue.Full:
            return False
        return True

    def notes(self) -> list[tuple[int, str]]:
        """Take what people should know, as (logging level, text)."""
        return [self._notes.popleft() for _ in range(len(self._notes))]

    def end(self, summary: dict[str, Any], timeout: float) -> None:
        """Hand over what is left and wait at most `timeout` seconds. Whatever happens, no process stays."""
        now = time.monotonic()
        self._fall_back_at, self._deadline = now + min(LAST_CHANCE_SECONDS, timeout / 2), now + timeout
        with contextlib.suppress(queue.Full):
            self._queue.put((END, (summary,)), timeout=timeout if self._thread.is_alive() else 0)
        self._thread.join(min(QUIET_SECONDS, self._left()))
        if self._thread.is_alive() and self._left():
            log.info("waiting for W&B to take the last records, at most %.0f s", self._left())
            self._thread.join(self._left())
        if self._thread.is_alive():
            self._killed = True
            self._note_late()
        self._kill()
        self._thread.join(KILL_SECONDS)

    # In the thread ----------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            for mode in self._modes:
                if not self._killed and (process := self._open(mode)):
                    try:
                        self._feed(process)
                    finally:
                        self._close(process)
                    return
        except Exception as cause:  # whatever it is, it stays here
            if not self._killed:
                full = "; the disk is full" if has_no_room(self._start["dir"]) else ""
                self._note(logging.WARNING, f"W&B stopped, the run goes on without it: {cause}{full}; {self._rescue()}")
        self.failed = True
        self.rejected += self.waiting

    def _open(self, mode: str) -> subprocess.Popen[bytes] | None:
        """Start the process and wait until W&B has begun; None, with a note, when it does not."""
        self._log_file.parent.mkdir(parents=True, exist_ok=True)
        self._scratch = tempfile.mkdtemp(prefix=SCRATCH)
        with self._log_file.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "asyncrl_wandb.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=self._environment(),
                start_new_session=True,
            )
        problem = "it ended at once"
        try:
            self._write(process, {"start": self._start | {"mode": mode}})
            answer = self._answer(process, mode)
            if "started" in answer:
                self._directory = answer["directory"]
                self._note(logging.INFO, f"W&B: {answer['started'] or 'offline, ' + answer['directory']}")
                return process
            problem = answer.get("failed", problem)
        except (OSError, ValueError) as cause:
            problem = str(cause)
        self._close(process)
        if not self._killed:
            then = "this run is written offline" if mode != self._modes[-1] else "the run goes on without it"
            self._note(logging.WARNING, f"W&B did not start: {problem}; {then} (see {self._log_file})")
        return None

    def _answer(self, process: subprocess.Popen[bytes], mode: str) -> dict[str, Any]:
        assert process.stdout is not None
        began = time.monotonic()
        while not select.select([process.stdout], [], [], TICK_SECONDS)[0]:
            limit = min(began + self._start_seconds, self._fall_back_at) if mode == "online" else self._deadline
            if time.monotonic() > limit:
                return {"failed": f"no answer within {time.monotonic() - began:.0f} s"}
        line = process.stdout.readline()
        return json.loads(line) if line else {}

    def _feed(self, process: subprocess.Popen[bytes]) -> None:
        while True:
            kind, content = self._queue.get()
            self._write(process, {kind: content})
            self._listen(process, 0.0)
            if kind == END:
                break
        assert process.stdin is not None
        process.stdin.close()
        while self._listen(process, TICK_SECONDS):
            pass
        if code := process.wait():
            raise RuntimeError(f"its process ended with exit code {code}")

    def _listen(self, process: subprocess.Popen[bytes], seconds: float) -> bool:
        """Take in what the process reports within so many seconds; returns False at its end."""
        assert process.stdout is not None
        if select.select([process.stdout], [], [], seconds)[0]:
            line = process.stdout.readline()
            if not line:
                return False
            report = json.loads(line)
            if "late" in report:
                self._note_late()
            elif "rejected" in report:
                if not self.rejected:
                    self._note(logging.WARNING, f"W&B refused a record (said once): {report['rejected']}, see {self._log_file}")
                self.rejected += 1
        return True

    def _write(self, process: subprocess.Popen[bytes], message: dict[str, Any]) -> None:
        assert process.stdin is not None
        process.stdin.write(json.dumps(message, default=str).encode() + b"\n")
        process.stdin.flush()

    def _close(self, process: subprocess.Popen[bytes]) -> None:
        self._kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):  # what it still holds has no reader
                assert pipe is not None
                pipe.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    # Both ---------------------------------------------------------------------------------------------------------------------

    def _environment(self) -> dict[str, str]:
        """Everything W&B writes stays below its folder, and it reports nothing of its own, unless the user says otherwise."""
        quiet = {"WANDB_ERROR_REPORTING": "false", "WANDB_DATA_DIR": f"{self._start['dir']}/wandb"}
        inherited = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}  # would outlive the run
        return quiet | inherited | {VARIABLE: self._marker, "TMPDIR": self._scratch}

    def _left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def _rescue(self) -> str:
        return f"`wandb sync {self._directory}` uploads what is there, {self._log_file} has what it said"

    def _note_late(self) -> None:
        self._note(logging.WARNING, f"W&B did not take everything in its time at the end; {self._rescue()}")

    def _note(self, level: int, text: str) -> None:
        self._notes.append((level, text))

    def _kill(self) -> None:
        """End the process and all that it started, wherever they have moved to."""
        for process in processes_of(self._marker, [], frozenset({os.getpid()})):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

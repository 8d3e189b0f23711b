"""A run that is alive can't be resumed; one that was killed can, as soon as nothing of it is left."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from asyncrl.errors import RunDirectoryError
from asyncrl.runtime.lock import LOCK_FILE, RunLock, _is_alive

HOLD = """
import sys
from pathlib import Path
from asyncrl.runtime.lock import RunLock
from asyncrl.runtime.janitor import Janitor
lock = RunLock(Path(sys.argv[1]))
lock.take()
janitor = Janitor([], [lock.descriptor])
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path):
    """A process that holds the lock, with its janitor."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_the_process_that_holds_it_is_named(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    with pytest.raises(RunDirectoryError, match=f"still alive: process {holder.pid} on "):
        RunLock(tmp_path).take()


def test_it_is_free_once_a_killed_run_is_cleared_away(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    lock = RunLock(tmp_path)
    lock.take()
    assert json.loads((tmp_path / LOCK_FILE).read_text())["pid"] == os.getpid()
    lock.release()


def test_it_can_be_taken_again_after_it_was_given_back(tmp_path: Path) -> None:
    for _ in range(2):
        lock = RunLock(tmp_path)
        lock.take()
        with pytest.raises(RunDirectoryError, match=f"process {os.getpid()} "):
            RunLock(tmp_path).take()
        lock.release()


def test_a_place_that_cannot_be_locked_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="can't be locked: No such file"):
        RunLock(tmp_path / "nowhere").take()


def test_a_process_that_ends_while_it_is_looked_at_is_no_holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    monkeypatch.setattr(os, "kill", lambda pid, number: None)  # it was there a moment before
    assert not _is_alive({"pid": ended.pid, "host": socket.gethostname()})

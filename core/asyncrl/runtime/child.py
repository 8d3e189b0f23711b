"""Run a command that cannot outlive its owner: `python -m asyncrl.runtime.child LOG BYTES -- COMMAND …`.

What the command says goes to the file LOG, which begins anew at so many BYTES. A full disk never reaches the command.

The owner holds the write end of this process's stdin. When it closes, for whatever reason (a clean stop, kill -9), the command's whole
process group is ended: SIGTERM first, SIGKILL after a grace period. Then its temporary files are removed: a killed command leaves them, and
SGLang does each time.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from asyncrl.runtime import janitor
from asyncrl.runtime.log_files import OutputLog
from asyncrl.runtime.shared_files import SharedFiles, remove_shared_files

GRACE_SECONDS = 5.0
CHUNK = 2**16
DRAIN_SECONDS = 2.0
LOOK_SECONDS = 2.0
_PR_SET_PDEATHSIG = 1


def spawn(argv: Sequence[str], *, env: Mapping[str, str], log_file: Path, log_bytes: int = 0) -> subprocess.Popen[bytes]:
    """Start `argv` under this supervisor; its output goes to `log_file`, which begins anew at `log_bytes` (0: never). Close the returned
    process's stdin to end it."""
    log_file.parent.mkdir(parents=True, exist_ok=True)
    with log_file.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "asyncrl.runtime.child", str(log_file), str(log_bytes), "--", *argv],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **env},
            start_new_session=True,
        )


def end(process: subprocess.Popen[bytes]) -> None:
    """End what `spawn` started and wait until it is gone."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(GRACE_SECONDS + 5)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(5)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent thread ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _end_group(child: subprocess.Popen[bytes]) -> None:
    for number, patience in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, 2.0)):
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            return
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            child.poll()
            try:
                os.killpg(child.pid, 0)
            except ProcessLookupError:
                return
            time.sleep(0.02)


def _write_down(said: int, log: OutputLog) -> None:
    """Write what is said until nobody is left who could say something."""
    while data := os.read(said, CHUNK):
        log.write(data)


@contextlib.contextmanager
def _own_temporary_files() -> Iterator[dict[str, str]]:
    """Yield variables with which a command puts its temporary files into a directory of its own, which is removed at the end."""
    shared = tempfile.gettempdir()
    try:
        directory = tempfile.mkdtemp(prefix=janitor.temporary_prefix(os.environ.get(janitor.VARIABLE, "")))
    except OSError:  # a full disk
        yield {}
        return
    kept = {"TORCHINDUCTOR_CACHE_DIR": f"{shared}/torchinductor_{os.getuid()}"}  # torch means it for the next process too
    try:
        yield {**kept, **os.environ, "TMPDIR": directory}
    finally:
        remove_shared_files(Path(directory))
        shutil.rmtree(directory, ignore_errors=True)


def main() -> int:
    with _own_temporary_files() as env:
        return _supervise(env)


def _supervise(env: Mapping[str, str]) -> int:
    (_, log_file, log_bytes, _, *argv) = sys.argv
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    said, its = os.pipe()
    child = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=its,
        stderr=its,
        start_new_session=True,
        preexec_fn=die_with_parent,
        env=env or None,
    )
    os.close(its)
    shared = SharedFiles(child.pid, Path(env.get("TMPDIR", os.devnull)))
    log = OutputLog(Path(log_file), int(log_bytes))
    output = threading.Thread(target=_write_down, args=(said, log), name="output", daemon=True)
    output.start()
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.set_wakeup_fd(write_end)
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ, "owner")
        selector.register(read_end, selectors.EVENT_READ, "signal")
        while child.poll() is None:
            ready = selector.select(LOOK_SECONDS)
            shared.look()
            for key, _ in ready:
                if key.data == "signal":
                    if signal.SIGTERM in os.read(read_end, 64):
                        _end_group(child)
                elif not os.read(0, 64):
                    _end_group(child)
                    output.join(DRAIN_SECONDS)
                    return 0
    code = child.returncode
    _end_group(child)
    output.join(DRAIN_SECONDS)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())

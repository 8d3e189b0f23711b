"""Scorers that behave in every way a scorer can, imported by worker processes in `test_scoring.py`."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path


def equal(completion: str, answer: str) -> bool:
    return completion == answer


def half(completion: str) -> float:
    print("to the standard output", completion, flush=True)
    sys.stderr.write("to the standard error\n")
    return 0.5


def process_id() -> int:
    return os.getpid()


def raising(message: str) -> float:
    raise ValueError(message)


def nothing() -> None:
    return None


def not_a_number() -> float:
    return float("nan")


def environment(name: str) -> bool:
    return name in os.environ


def variables() -> int:
    raise LookupError(" ".join(sorted(os.environ)))


def hang(started: str = "") -> float:
    """Spin in C code that holds the interpreter lock, after saying who does."""
    if started:
        Path(started).write_text(str(os.getpid()))
    while True:
        re.match(r"(a+)+$", "a" * 64 + "b")


def hang_with_child(started: str) -> float:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(started).write_text(f"{os.getpid()} {child.pid}")
    time.sleep(600)
    return 0.0


def deaf(seconds: float) -> float:
    """Ignore every signal that can be ignored and sleep."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    time.sleep(seconds)
    return 1.0


def eat_memory() -> float:
    hoard = []
    while True:
        hoard.append(bytearray(64 << 20))


def recurse(depth: int = 0) -> float:
    return recurse(depth + 1)


def segfault() -> float:
    ctypes.string_at(0)
    return 1.0


def leave(code: int) -> float:
    sys.exit(code)


def forge() -> float:
    """Write an answer of one's own to every descriptor there is, then crash."""
    for descriptor in range(64):
        try:
            os.write(descriptor, b'{"id": 1, "reward": 1.0}\n' if descriptor == 0 else b"[" * 100_000 + b"\n")
        except OSError:
            continue
    os._exit(0)


def limits() -> float:
    import resource

    assert resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == 1 << 30
    assert resource.getrlimit(resource.RLIMIT_CPU)[0] < 60
    return 1.0


def read_input() -> float:
    return float(len(sys.stdin.read()))

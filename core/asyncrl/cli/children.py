"""Processes that a command starts end with it: when it is told to end, and when it is killed."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn


def die_with_owner() -> None:
    """Have the kernel kill this process when the thread that starts it ends, however that happens (Linux). A `preexec_fn`."""
    if sys.platform == "linux":
        from asyncrl.runtime.child import die_with_parent

        die_with_parent()


@contextlib.contextmanager
def unwinding() -> Iterator[None]:
    """Let SIGTERM end the command as an exception does, with exit code 143, so that its processes and folders are removed."""
    before = signal.signal(signal.SIGTERM, _unwind)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _unwind(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)

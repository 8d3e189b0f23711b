"""Processes that somebody left behind: children of this process, by what the kernel says."""

from __future__ import annotations

import os
import time
from pathlib import Path


def children() -> dict[int, str]:
    """Return the living child processes by id, with their command lines; empty where there is no /proc."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (place / "stat").read_text().rpartition(")")[2].split()[:2]
            command = (place / "cmdline").read_text().replace("\0", " ").strip()
        except OSError:  # it has just ended
            continue
        if int(parent) == os.getpid() and state != "Z":
            found[int(place.name)] = command
    return found


def left_since(before: dict[int, str], patience: float) -> dict[int, str]:
    """Return the children that were not there before, after waiting `patience` seconds for them to end."""
    deadline = time.monotonic() + patience
    while (left := {pid: command for pid, command in children().items() if pid not in before}) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left

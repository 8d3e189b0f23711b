"""A file system that is soon full."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

BALLAST = "ballast"


@contextmanager
def small_disk(place: Path, kilobytes: int) -> Iterator[Path]:
    """Mount a small file system at `place`, where the system lets a test have one; else the test is skipped."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, timeout=60).returncode:
        pytest.skip("a test may not mount a file system here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True, timeout=60)


def fill(disk: Path) -> Path:
    """Leave no room on it; returns the file whose removal makes room again."""
    ballast = disk / BALLAST
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096) == 4096:
                pass
        except OSError:
            pass
    return ballast

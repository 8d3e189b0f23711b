"""When is a model directory complete? When its marker is there: it is written last, so a reader never sees half a snapshot."""

from __future__ import annotations

import os
from pathlib import Path

MARKER = ".complete"
"""Name of the empty file whose presence says that everything else in the directory was written."""


def mark_complete(directory: Path) -> None:
    """Say that `directory` is complete; the marker appears at once or not at all. Raises OSError."""
    partial = directory / f"{MARKER}.{os.getpid()}"
    partial.touch()
    partial.replace(directory / MARKER)


def mark_incomplete(directory: Path) -> None:
    """Take the marker away before a directory is written again. Raises OSError."""
    (directory / MARKER).unlink(missing_ok=True)


def is_complete(directory: Path) -> bool:
    """Whether everything in `directory` was written."""
    return (directory / MARKER).is_file()

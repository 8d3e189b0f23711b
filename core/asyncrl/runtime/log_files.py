"""Log files that begin anew when they have grown: `log.txt` becomes `log.txt.1`, which takes the place of an older one."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from logging.handlers import RotatingFileHandler
from pathlib import Path

KEPT = 1
"""Older files of each log."""


def older(path: Path) -> Path:
    """Return where a log's former content is."""
    return path.with_name(f"{path.name}.1")


class RunLog(RotatingFileHandler):
    """`log.txt`. A disk that is full is said once on stderr, and costs lines but never the run.

    Args:
        limit: bytes at which it begins anew; 0 is never.
    """

    def __init__(self, path: Path, limit: int) -> None:
        super().__init__(path, maxBytes=limit, backupCount=KEPT)
        self._said = False

    def handleError(self, record: logging.LogRecord) -> None:
        cause = sys.exc_info()[1]
        if not isinstance(cause, OSError):
            super().handleError(record)
        elif not self._said:
            self._said = True
            with contextlib.suppress(OSError):
                print(f"asyncrl: {self.baseFilename} can't be written: {cause.strerror or cause}", file=sys.stderr, flush=True)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            super().close()


class OutputLog:
    """What a server says, as bytes: always taken, and written down as far as the disk has room.

    Args:
        limit: bytes at which it begins anew, between two lines; 0 is never.
    """

    def __init__(self, path: Path, limit: int) -> None:
        self._path = path
        self._limit = limit

    def write(self, data: bytes) -> None:
        """Append. Never raises OSError."""
        with contextlib.suppress(OSError):
            if self._limit and self._size() + len(data) > self._limit:
                last_line = data.rfind(b"\n") + 1
                if last_line:
                    self._append(data[:last_line])
                data = data[last_line:]
                with contextlib.suppress(FileNotFoundError):
                    os.replace(self._path, older(self._path))
            self._append(data)

    def _append(self, data: bytes) -> None:
        with self._path.open("ab", buffering=0) as file:  # also without data: a log that begins anew is there
            while data:
                data = data[file.write(data) :]

    def _size(self) -> int:
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0

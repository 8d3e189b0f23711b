"""A file that grows by whole lines, also on a disk that is full for a while."""

from __future__ import annotations

import errno
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

MOST_KEPT = 100_000
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class LineFile:
    """Appends lines, each whole or not at all. What a full disk does not take is kept and written, in order, before what comes next.

    Only the newest `MOST_KEPT` additions are kept.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._waiting: deque[bytes] = deque(maxlen=MOST_KEPT)

    def __iter__(self) -> Iterator[bytes]:
        """Yield each line, with its end: those in the file, then those that wait to be written."""
        if self.path.exists():
            with self.path.open("rb") as file:
                yield from file
        for lines in self._waiting:
            yield from lines.splitlines(keepends=True)

    def keep(self, belongs: Callable[[bytes], bool]) -> None:
        """Take back every line of which `belongs`, asked in order, is not true, also those that wait. A full disk is no hindrance."""
        written = self.path.stat().st_size if self.path.exists() else 0
        head, end = 0, 0  # bytes before the first line that goes; bytes so far
        later: list[bytes] = []  # lines of the file that stay after it
        waiting: list[bytes] = []
        for text in self:
            end += len(text)
            if not belongs(text):
                continue
            if end > written:
                waiting.append(text)
            elif head == end - len(text):
                head = end
            else:
                later.append(text)
        if later and not _rewritten(self.path, head, later):
            waiting = later + waiting
        elif later:
            head += sum(map(len, later))
        if head < written:
            os.truncate(self.path, head)
        self._waiting = deque(waiting, maxlen=MOST_KEPT)

    def add(self, lines: bytes) -> None:
        """Append one or more whole lines. Raises OSError when they can't be written now; they are written later."""
        self._waiting.append(lines)
        self.flush()

    def flush(self) -> None:
        """Write what waits. Raises OSError when that is still impossible."""
        if not self._waiting:
            return
        with self.path.open("ab", buffering=0) as file:
            while self._waiting:
                append(file.fileno(), self._waiting[0])
                self._waiting.popleft()


def _rewritten(path: Path, head: int, later: Sequence[bytes]) -> bool:
    """Leave the first `head` bytes of a file and then `later`, in one move; False for a disk that has no room for that."""
    growing = path.with_name(f".{path.name}")
    try:
        shutil.copyfile(path, growing)
        os.truncate(growing, head)
        with growing.open("ab", buffering=0) as file:
            append(file.fileno(), b"".join(later))
        growing.replace(path)
    except OSError as error:
        growing.unlink(missing_ok=True)
        if not is_full(error):
            raise
        return False
    return True


def append(descriptor: int, data: bytes) -> None:
    """Write all of `data` at the end of a file that was opened for that, or nothing of it. Raises OSError."""
    size = os.fstat(descriptor).st_size
    if os.write(descriptor, data) != len(data):  # a full disk takes a part of it
        os.ftruncate(descriptor, size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def is_full(error: BaseException | None) -> bool:
    """Whether a failure, in whatever process it happened, came of a full disk or a used-up quota."""
    words = [os.strerror(code).lower() for code in FULL]
    while error is not None:
        if isinstance(error, OSError) and error.errno in FULL:
            return True
        if any(word in str(error).lower() for word in words):
            return True
        error = error.__cause__ or error.__context__
    return False

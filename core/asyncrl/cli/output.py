"""Standard output and error that say in one line when they can't be written, as on a full disk, instead of a traceback or nothing."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from asyncrl.errors import RunError


class Stream:
    """A text stream whose failure to write is `failed`: raised, or nothing where that is None. A reader that has left is told apart."""

    def __init__(self, stream: TextIO, failed: type[RunError] | None) -> None:
        self._stream = stream
        self._failed = failed

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as cause:
            self._fail(cause)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as cause:
            self._fail(cause)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _fail(self, cause: OSError) -> None:
        silence(self._stream)
        if self._failed is not None and isinstance(cause, BrokenPipeError):
            raise cause
        if self._failed is not None:
            raise self._failed(f"the output can't be written: {cause.strerror}") from cause


def silence(stream: TextIO) -> None:
    """Let what a stream still holds go nowhere: the interpreter would complain about it at its end."""
    with contextlib.suppress(OSError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Make `sys.stdout` raise `RunError` where it can't be written, also at the end, and `sys.stderr` nothing: nobody can be told."""
    out, err = sys.stdout, sys.stderr
    with contextlib.ExitStack() as stack:
        if err is not None:
            stack.enter_context(contextlib.redirect_stderr(Stream(err, None)))
            stack.callback(lambda: sys.stderr.flush())
        if out is not None:
            stack.enter_context(contextlib.redirect_stdout(Stream(out, RunError)))
            stack.callback(lambda: sys.stdout.flush())
        yield

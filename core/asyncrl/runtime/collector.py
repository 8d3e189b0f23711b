"""Keeps the log lines of an actor until the controller fetches them."""

from __future__ import annotations

import logging
from collections import deque


class Collector(logging.Handler):
    """Attached to the `asyncrl` logger of a process by `collect`."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[tuple[int, str]] = deque(maxlen=1000)

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append((record.levelno, record.getMessage()))

    def take(self) -> list[tuple[int, str]]:
        """Return level and text of the lines since the last call."""
        return [self._lines.popleft() for _ in range(len(self._lines))]


def collect() -> Collector:
    """Start to keep what this process logs."""
    collector = Collector()
    logger = logging.getLogger("asyncrl")
    logger.addHandler(collector)
    logger.setLevel(logging.INFO)
    return collector

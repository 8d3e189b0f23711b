"""Ctrl-C: the first finishes the step and saves, the second leaves now."""

from __future__ import annotations

import asyncio
import logging
import signal
from types import TracebackType
from typing import Any

from asyncrl.training.loop import Stop

log = logging.getLogger("asyncrl")


class Interrupts:
    """While entered, SIGINT and SIGTERM set `stop`, or cancel `task` when the loop has not begun or it is the second signal."""

    def __init__(self, task: asyncio.Task[Any], stop: Stop) -> None:
        self._task = task
        self._stop = stop
        self.loop_running = False
        self.received = 0

    def __enter__(self) -> Interrupts:
        self.install()
        return self

    def install(self) -> None:
        """Take both signals. Again after Ray has started: it puts a handler of its own in place, which aborts."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signal)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

    def _signal(self) -> None:
        self.received += 1
        self._stop.requested = True
        if self.received == 1 and self.loop_running:
            log.warning("stopping: finishing the step and saving; press Ctrl-C again to leave now")
        else:
            log.warning("leaving now")
            self._task.cancel()

"""The thread that generates. Everything that touches the batch or the weights is a command it runs between two steps.

A thread of its own, and not steps inside the event loop, so that the server answers while a long step runs: torch releases the
interpreter lock in its operators, so HTTP work overlaps with them; measured, this was no slower.
"""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from asyncrl_torch.batcher import Batcher
from asyncrl_torch.requests import Request

T = TypeVar("T")
GATHER_SECONDS = 0.001
GATHER_ROUNDS = 25


class Worker:
    """Steps a `Batcher` whenever it has work. Methods are called on the event loop."""

    def __init__(self, batcher: Batcher) -> None:
        self.batcher = batcher
        self._loop = asyncio.get_running_loop()
        self._commands: deque[Callable[[], None]] = deque()
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="generate", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """End the thread after its present step; waits at most `timeout` seconds for it."""
        self._stopping = True
        self._wake.set()
        self._thread.join(timeout)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def post(self, function: Callable[..., Any], *args: Any) -> None:
        """Run a function between two steps, later; wake those whose requests it ends."""

        def command() -> None:
            ended = function(*args)
            if ended:
                self._tell(_announce, ended)

        self._commands.append(command)
        self._wake.set()

    async def between_steps(self, function: Callable[..., T], *args: Any) -> T:
        """Run a function between two steps and return what it returns or raise what it raises."""
        future: asyncio.Future[T] = self._loop.create_future()

        def command() -> None:
            try:
                result = function(*args)
            except Exception as error:
                self._tell(_fail, future, error)
            else:
                self._tell(_finish, future, result)

        self._commands.append(command)
        self._wake.set()
        return await future

    async def ending(self, function: Callable[..., list[Request]], *args: Any) -> int:
        """Run a function that ends requests between two steps, wake those who wait for them, and return how many."""
        ended = await self.between_steps(function, *args)
        _announce(ended)
        return len(ended)

    def _tell(self, function: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            self._stopping = True  # the loop is closed: the server is ending

    def _run(self) -> None:
        while not self._stopping:
            while self._commands:
                self._commands.popleft()()
            if not self.batcher.has_work:
                self._wake.wait()
                self._wake.clear()
                self._gather()
                continue
            try:
                heard = self.batcher.step()
            except Exception as error:  # one bad step must not end the server; its requests end with the reason
                traceback.print_exc()
                heard = self.batcher.fail_all(f"{type(error).__name__}: {error}")
            if heard:
                self._tell(_announce, heard)

    def _gather(self) -> None:
        """A burst comes in one request at a time: let it arrive whole, for its first steps would be small and slow its arrival."""
        for _ in range(GATHER_ROUNDS):
            arrived = len(self._commands)
            time.sleep(GATHER_SECONDS)
            if len(self._commands) == arrived:
                return


def _announce(requests: list[Request]) -> None:
    for request in requests:
        request.wakeup.set()


def _finish(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)

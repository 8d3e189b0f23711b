"""Scoring in worker processes that can be killed: a completion is untrusted, and a scorer may hang or crash on it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from asyncrl.errors import AsyncrlError, DeadlineExceeded, PluginFailed, PluginLoadError, Stopped
from asyncrl.samples import Score

log = logging.getLogger("asyncrl")

WORKER_SCRIPT = Path(__file__).with_name("scoring_worker.py")
KEPT_VARIABLES = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONHOME")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
LONGEST_ANSWER = 64 * 1024


def clean_environment() -> dict[str, str]:
    """Return what a worker needs to run Python, and no variable that could hold a secret."""
    return {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ} | ONE_THREAD


class ScoringPool:
    """Worker processes that call one scorer, each scoring under a hard deadline, a CPU limit and a memory limit.

    Workers are started when first needed and then kept. They have a clean environment, see the caller's import path, and die
    with the thread that first needed them. A pool belongs to one event loop, which may run in any thread.

    Args:
        scorer: ``module:function``, fixed by the plugin's own code and never taken from a user or a model. The function gets
            the arguments of `submit` and returns a finite number.
        workers: most processes at once.
        timeout: seconds for one scoring; past it the worker is killed.
        memory_bytes: bound on a worker's address space.
        start_timeout: seconds for a worker to import the scorer.
    """

    def __init__(
        self,
        scorer: str,
        *,
        workers: int = 2,
        timeout: float = 5.0,
        memory_bytes: int = 2 << 30,
        start_timeout: float = 120.0,
    ) -> None:
        self.scorer = scorer
        self.timeout = timeout
        self.memory_bytes = memory_bytes
        self.start_timeout = start_timeout
        self._free = asyncio.Semaphore(workers)
        self._idle: list[_Worker] = []
        self._alive: set[_Worker] = set()
        self._reaping: set[asyncio.Task[None]] = set()
        self._broken: AsyncrlError | None = None
        self._closed = False

    async def submit(self, *arguments: Any) -> Score:
        """Score one completion; `arguments` are JSON-able and go to the scorer as they are.

        Returns:
            The scorer's reward; or reward 0 and a `failure` when the scoring was killed, crashed, or ran out of memory or stack.

        Raises:
            PluginFailed: the scorer raised; the worker's traceback is in `detail`.
            PluginLoadError: the scorer can't be imported.
            Stopped: the pool was closed.
        """
        request = json.dumps(arguments)  # before a worker is taken: arguments that are no JSON are the caller's fault
        async with self._free:
            worker = await self._take()
            try:
                async with asyncio.timeout(self.timeout):
                    answer = await worker.ask(request)
            except TimeoutError:
                self._discard(worker)
                return Score(0.0, f"scorer killed after {self.timeout:g} s")
            except BaseException:  # cancelled in the middle: its answer must never reach another request
                self._discard(worker)
                raise
            return await self._judge(worker, answer)

    async def close(self) -> None:
        """Kill every worker, a scoring in flight included, and wait until all are gone; `submit` raises `Stopped` from then on."""
        self._closed = True
        for worker in list(self._alive):
            self._discard(worker)
        await asyncio.gather(*self._reaping)

    async def _judge(self, worker: _Worker, answer: dict[str, Any]) -> Score:
        if "reward" in answer or "error" in answer:
            if self._closed:
                self._discard(worker)
            else:
                self._idle.append(worker)
            if "reward" in answer:
                return Score(float(answer["reward"]))
            error = PluginFailed(f"scorer {self.scorer} raised {answer['error']}")
            error.detail = str(answer.get("detail", ""))
            error.add_note(error.detail)
            raise error
        if "exhausted" in answer:
            self._discard(worker)  # what is left of its memory is anyone's guess
            return Score(0.0, f"scorer ran out of {answer['exhausted']}")
        ending = await worker.ending()
        self._discard(worker)
        if self._closed:
            raise Stopped(f"the scoring pool of {self.scorer} was closed")
        return Score(0.0, f"scorer {ending}")

    async def _take(self) -> _Worker:
        """An idle worker, or a new one."""
        while not self._closed and self._idle:
            worker = self._idle.pop()
            if worker.process.poll() is None:
                return worker
            self._discard(worker)  # it died between two scorings, which no completion is to blame for
        if self._closed:
            raise Stopped(f"the scoring pool of {self.scorer} was closed")
        if self._broken is not None:
            raise self._broken
        return await self._start()

    async def _start(self) -> _Worker:
        worker = _Worker()
        self._alive.add(worker)
        setup = {
            "parent": os.getpid(),
            "scorer": self.scorer,
            "path": [entry or os.getcwd() for entry in sys.path],
            "cpu_seconds": self.timeout + 1,
            "memory_bytes": self.memory_bytes,
        }
        try:
            async with asyncio.timeout(self.start_timeout):
                answer = await worker.open(json.dumps(setup))
        except TimeoutError:
            self._discard(worker)
            raise DeadlineExceeded(f"a process for scorer {self.scorer} was not ready after {self.start_timeout:g} s") from None
        except BaseException:
            self._discard(worker)
            raise
        if answer.get("ready"):
            return worker
        reason = answer.get("error") or f"its process {await worker.ending()}"
        self._discard(worker)
        if self._closed:
            raise Stopped(f"the scoring pool of {self.scorer} was closed")
        self._broken = PluginLoadError(f"scorer {self.scorer} can't be started: {reason}")
        raise self._broken

    def _discard(self, worker: _Worker) -> None:
        """Kill a worker at once; a task of its own waits until the kernel has let it go."""
        if worker in self._alive:
            self._alive.discard(worker)
            worker.kill()
            task = asyncio.get_running_loop().create_task(worker.gone())
            self._reaping.add(task)
            task.add_done_callback(self._reaping.discard)


class _Worker:
    """One process and the socket to it. The constructor starts the process; it must be killed and awaited `gone`."""

    def __init__(self) -> None:
        self._mine, its = socket.socketpair()
        with its:
            try:
                # A session of its own: Ctrl-C in a terminal does not reach it, and killing the group takes its children along.
                self.process = subprocess.Popen(
                    [sys.executable, "-P", str(WORKER_SCRIPT)],
                    stdin=its.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=clean_environment(),
                    start_new_session=True,
                )
            except BaseException:
                self._mine.close()
                raise
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._count = 0

    async def open(self, setup: str) -> dict[str, Any]:
        """Connect and send the set-up line; return the answer, ``{"ready": true}`` if all is well."""
        self._reader, self._writer = await asyncio.open_unix_connection(sock=self._mine, limit=LONGEST_ANSWER)
        return await self._exchange(setup)

    async def ask(self, arguments: str) -> dict[str, Any]:
        """Send one request; return its answer, or {} when the process has hung up or speaks nonsense."""
        self._count += 1
        answer = await self._exchange(f'{{"id": {self._count}, "arguments": {arguments}}}')
        return answer if answer.get("id") == self._count else {}

    async def _exchange(self, line: str) -> dict[str, Any]:
        assert self._reader is not None and self._writer is not None
        try:
            self._writer.write(line.encode() + b"\n")
            await self._writer.drain()
            answer = json.loads(await self._reader.readline() or b"{}")
        except (OSError, ValueError, RecursionError):
            return {}
        return answer if isinstance(answer, dict) else {}

    async def ending(self) -> str:
        """Say how the process ended after it hung up; it has a second to do so."""
        await self._wait(seconds=1.0)
        code = self.process.returncode
        if code is None:
            return "hung up"
        if code == -signal.SIGXCPU:
            return "used up its CPU time"
        return f"crashed ({signal.Signals(-code).name})" if code < 0 else f"exited with code {code}"

    def kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        if self._writer is not None:
            self._writer.close()
        else:
            self._mine.close()

    async def gone(self) -> None:
        """Wait until the killed process has left the process table, warning every 30 s."""
        while not await self._wait(seconds=30.0):
            log.warning("scoring process %d was killed and is still there", self.process.pid)

    async def _wait(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.process.poll() is None:
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.005)
        return True

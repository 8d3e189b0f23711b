"""`trace_hooks`: each hook call of a process as a line with plugin, arguments in short, answer and duration. Off, it costs nothing."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import sys
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from asyncrl.authoring import RunFacts
from asyncrl.hookspecs import PROCESSES, SLOT_HOOKS
from asyncrl.scrub import said_by

log = logging.getLogger("asyncrl")

IN_FULL = 1000
"""Calls of one plugin's hook that are all written; of later ones at most one in `PAUSE_SECONDS`, with how many were left out."""
PAUSE_SECONDS = 1.0
LONGEST = 60
"""Characters of a text that is shown."""
HELD_BACK = 1000
"""Lines kept until the run's directory is made."""
WORDS = ("action", "reason", "outcome", "kind")
"""Fields of an answer whose text is shown; any other text might be a key, or an address with one in it."""


class HookTrace:
    """Wraps hook implementations so that their calls are written.

    Args:
        write: takes one line, without its end.
        hide: masks the secrets in what an exception says.
    """

    def __init__(self, write: Callable[[str], None], hide: Callable[[str], str] = str) -> None:
        self.hide = hide
        self._write = write

    @classmethod
    def of_run(cls, facts: RunFacts, slots: Collection[str] | None) -> HookTrace:
        """Of the process that holds the plugins of `slots` (None is all): into the run's directory; to stderr where it has none."""
        if not facts.run_dir:
            return cls(to_stderr)
        process = next((name for name, held in PROCESSES.items() if held == set(slots or SLOT_HOOKS)), "process")
        return cls(TraceFile(Path(facts.run_dir), f"{process}-{os.getpid()}.txt").write)

    def around(
        self, plugin: str, hook: str, function: Callable[..., Any], names: Sequence[str], *, asynchronous: bool
    ) -> Callable[..., Any]:
        """Return `function` with its calls written. It is called with the arguments `names`, by position or by name."""
        said = _Said(f"{plugin:<24} {hook}", self)

        def call(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                answer = function(*args, **kwargs)
            except BaseException as error:
                said.write(names, args, kwargs, f"raised {said_by(error)}", began)
                raise
            said.write(names, args, kwargs, f"-> {brief(answer)}", began)
            return answer

        async def call_async(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                answer = await function(*args, **kwargs)
            except BaseException as error:
                said.write(names, args, kwargs, f"raised {said_by(error)}", began)
                raise
            said.write(names, args, kwargs, f"-> {brief(answer)}", began)
            return answer

        return call_async if asynchronous else call

    def put(self, line: str) -> None:
        self._write(f"{_now()}  {line}")


class _Said:
    """What was written of one plugin's hook."""

    def __init__(self, head: str, trace: HookTrace) -> None:
        self._head = head
        self._trace = trace
        self._calls = 0
        self._left_out = 0
        self._last = 0.0

    def write(self, names: Sequence[str], args: Sequence[Any], kwargs: dict[str, Any], end: str, began: float) -> None:
        now = time.perf_counter()
        self._calls += 1
        if self._calls > IN_FULL and now - self._last < PAUSE_SECONDS:
            self._left_out += 1
            return
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        shown = ", ".join(f"{name}={brief(value)}" for name, value in given.items())
        missed = f"  (and {self._left_out:,} calls since the last line)" if self._left_out else ""
        self._trace.put(f"{self._head}({shown}) {shorter(self._trace.hide(end))}  {_duration(now - began)}{missed}")
        self._left_out, self._last = 0, now


# Where lines go -----------------------------------------------------------------------------------------------------------


def to_stderr(line: str) -> None:
    if sys.stderr is not None:
        print(line, file=sys.stderr)


class TraceFile:
    """Lines for ``hooks/NAME`` in a run's directory, once that exists. A disk that takes no more ends the trace and not the run."""

    def __init__(self, run_dir: Path, name: str) -> None:
        self._path = run_dir / "hooks" / name
        self._held: list[str] = []
        self._file: Any = None
        self._ended = False

    def write(self, line: str) -> None:
        if self._ended:
            return
        self._held.append(f"{line}\n")
        try:
            if self._file is None:
                if not self._path.parent.parent.is_dir() and len(self._held) < HELD_BACK:
                    return
                self._path.parent.mkdir(exist_ok=True)
                self._file = self._path.open("a", buffering=1)  # by line, so that a killed process leaves its last call
            self._file.write("".join(self._held))
            self._held.clear()
        except OSError as cause:
            self._ended = True
            log.warning("the hook trace %s ends here: %s", self._path, cause.strerror)


# Values in short ----------------------------------------------------------------------------------------------------------


def brief(value: Any) -> str:
    """A value in a few words: numbers and short texts as they are; of anything else its type and size, never its content."""
    try:
        return _brief(value)
    except Exception:  # a value of the plugin's own must not break the run
        return type(value).__name__


def _brief(value: Any) -> str:
    if value is None or isinstance(value, bool | int):
        return repr(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str):
        return shorter(repr(value))
    if isinstance(value, Path):
        return shorter(str(value))
    name = type(value).__name__
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{name} {value.dtype}{list(value.shape)}"
    if dataclasses.is_dataclass(value):
        return shorter(f"{name}({', '.join(_fields(value))})")
    return f"{name} of {len(value)}" if hasattr(value, "__len__") else name


def _fields(value: Any) -> list[str]:
    """Numbers and sizes among the fields of a dataclass; for a text see `WORDS`."""
    shown = []
    for field in dataclasses.fields(value):
        one = value.__dict__.get(field.name) if hasattr(value, "__dict__") else getattr(value, field.name)
        if isinstance(one, bool | int | float):
            shown.append(f"{field.name}={_brief(one)}")
        elif isinstance(one, str) and field.name in WORDS and one:
            shown.append(f"{field.name}={one!r}")
        elif isinstance(one, list | tuple | dict | set | frozenset) and one:
            shown.append(f"{len(one)} {field.name}")
    if hasattr(value, "prompt_id") and not any(each.startswith("prompt_id=") for each in shown):
        shown.insert(0, f"prompt_id={value.prompt_id}")
    return shown


def shorter(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _duration(seconds: float) -> str:
    return f"{seconds:.3f} s" if seconds >= 1 else f"{seconds * 1e3:.3f} ms"


def _now() -> str:
    """Time of day; where an event loop runs on another clock, its seconds."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        loop = None
    if loop is not None and abs(loop.time() - time.monotonic()) > 1.0:
        return f"{loop.time():>21.6f}"
    now = time.time()
    return f"{time.strftime('%m-%d %H:%M:%S', time.localtime(now))}.{int(now % 1 * 1e6):06d}"

"""The far end of a `ScoringPool`: one process that scores one request after the other.

Runs as a script with the standard library alone, so that nothing but the scorer's own imports is in the process. Requests and
answers are lines of JSON on the socket that it finds as its standard input; whatever the scorer prints goes nowhere.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import math
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Read the set-up line, import the scorer, then answer one request after the other until the pool hangs up."""
    die_with_parent()
    channel, nothing = os.dup(0), os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)  # the scorer and its children must not be able to read requests or forge answers by descriptor 0
    with os.fdopen(channel, "rb") as requests:
        setup = json.loads(requests.readline() or "null")
        if setup is None or os.getppid() != setup["parent"]:  # the parent died before its death could be noticed
            return
        limit_memory(setup["memory_bytes"])
        sys.path[:] = setup["path"]
        try:
            module, _, name = setup["scorer"].partition(":")
            scorer = getattr(importlib.import_module(module), name)
        except Exception as error:
            send(channel, describe(error))
            return
        send(channel, {"ready": True})
        for line in requests:
            request = json.loads(line)
            allow_cpu(setup["cpu_seconds"])
            send(channel, {"id": request["id"], **score(scorer, request["arguments"])})


def score(scorer: Callable[..., Any], arguments: Sequence[Any]) -> dict[str, Any]:
    """Return ``{"reward": float}``, ``{"exhausted": what}`` when a resource ran out, or ``{"error": …, "detail": …}``."""
    try:
        reward = scorer(*arguments)
        if isinstance(reward, (str, bytes)) or not math.isfinite(reward):
            raise TypeError(f"the scorer must return a finite number, not {reward!r:.200}")
        return {"reward": float(reward)}
    except MemoryError:
        return {"exhausted": "memory"}
    except RecursionError:
        return {"exhausted": "stack"}
    except Exception as error:
        return describe(error)


def describe(error: Exception) -> dict[str, str]:
    """An exception as JSON, cut to a size that a hostile message can't exceed."""
    try:
        return {"error": f"{type(error).__name__}: {error}"[:500], "detail": "".join(traceback.format_exception(error))[-8000:]}
    except Exception:  # the exception's own text may be what fails
        return {"error": type(error).__name__, "detail": ""}


def send(channel: int, message: dict[str, Any]) -> None:
    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(channel, data) :]


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends, however that happens (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def limit_memory(memory_bytes: int) -> None:
    """Bound the address space, write no core dumps, and be the first to go when the machine runs out of memory."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    memory_bytes = memory_bytes if hard == resource.RLIM_INFINITY else min(memory_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    if sys.platform == "linux":
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")


def allow_cpu(seconds: float) -> None:
    """Let the process burn `seconds` more of CPU time: the bound that holds even when the pool itself is frozen."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    soft = math.ceil(usage.ru_utime + usage.ru_stime + seconds)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


if __name__ == "__main__":
    main()

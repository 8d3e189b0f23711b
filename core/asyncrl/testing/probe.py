"""Runs in a fresh process, as a script: imports one plugin, builds it, and writes down what that did, as JSON.

What every plugin imports anyway is imported first. Reads from standard input `{"path", "target", "options", "facts", "slot", "heavy"}`.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import Any

OUTSIDE = (
    "socket.connect",
    "socket.bind",
    "subprocess.Popen",
    "os.fork",
    "os.system",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.putenv",
    "shutil.rmtree",
)
"""Audit events of a touch on the outside world; opening a file for writing and starting a thread count too."""


def main() -> None:
    """Answer `{"error"}`, or `{"imported", "import_seconds", "empty_seconds"}` and, where it could be built, `{"touched",
    "build_seconds"}`; `build_error` where it could not."""
    job = json.load(sys.stdin)
    sys.path[:] = job["path"]
    before_anything = _known()
    empty = _empty_modules()
    module, _, attribute = job["target"].partition(":")
    started = time.perf_counter()
    try:
        kind: Any = importlib.import_module(module.strip())
    except (Exception, SystemExit):
        print(json.dumps({"error": traceback.format_exc()}))
        return
    seconds = time.perf_counter() - started
    heavy = sorted({name.split(".")[0] for name in set(sys.modules) - before_anything} & set(job["heavy"]))
    answer: dict[str, Any] = {"imported": heavy, "import_seconds": seconds, "empty_seconds": empty}
    for part in attribute.strip().split("."):
        kind = getattr(kind, part)
    answer.update(_built(kind, job))
    print(json.dumps(answer))


def _known() -> set[str]:
    """Import what authors derive from and use, and say what is there then."""
    import asyncrl

    for name in asyncrl.__all__:
        getattr(asyncrl, name)
    return set(sys.modules)


def _empty_modules(count: int = 9) -> float:
    """Seconds that importing an empty module takes: the median of some."""
    times = []
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, folder)
        for index in range(count):
            Path(folder, f"empty_module_{index}.py").write_text("")
        importlib.invalidate_caches()
        for index in range(count):
            started = time.perf_counter()
            importlib.import_module(f"empty_module_{index}")
            times.append(time.perf_counter() - started)
        sys.path.remove(folder)
    return sorted(times)[count // 2]


def _built(kind: Any, job: dict[str, Any]) -> dict[str, Any]:
    from asyncrl.authoring import RunFacts

    try:
        options = kind.Options.model_validate_json(job["options"], strict=True)
        named = type(kind.__name__, (kind,), {"slot": job["slot"], "name": "probed"})
        run = RunFacts(**job["facts"])
        touched: list[str] = []
        listening = [True]

        def listen(event: str, arguments: tuple[Any, ...]) -> None:
            if listening[0] and (line := _outside(event, arguments)):
                touched.append(line)

        threads = threading.active_count()
        sys.addaudithook(listen)
        times = []
        for _ in range(3):  # the quickest counts: the machine may be busy
            started = time.perf_counter()
            named(options, run)
            times.append(time.perf_counter() - started)
        listening[0] = False
        if threading.active_count() > threads:
            touched.append("started a thread")
        return {"touched": sorted(set(touched)), "build_seconds": min(times)}
    except Exception:
        return {"build_error": traceback.format_exc()}


def _outside(event: str, arguments: tuple[Any, ...]) -> str:
    if event == "open":
        path, mode, _ = arguments
        writes = isinstance(mode, str) and set(mode) & set("wax+")
        return f"opened {path} for writing" if writes and "__pycache__" not in str(path) else ""
    return f"{event} {arguments[0] if arguments else ''}".strip() if event in OUTSIDE else ""


if __name__ == "__main__":
    main()

"""Runs as a process of its own: imports a plugin, makes one, says as JSON what came of it. `asyncrl plugins check` starts these."""

from __future__ import annotations

import json
import os
import sys
import time
from operator import attrgetter
from typing import Any

from asyncrl.authoring import RunFacts
from asyncrl.errors import PluginError
from asyncrl.plugins import Found, PluginSpec, build_host, load

FACTS = RunFacts(batch_size=1, group_size=1, max_concurrent_samples=1, steps=1)


def main() -> None:
    """Read `{"path", "found"}` from standard input; answer `{"kind", "message", "detail", "doubts", "seconds"}`, `kind` being '' when all
    is well, ``broken``, or ``incompatible``."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever an import prints is no answer
    job = json.load(sys.stdin)
    sys.path[:] = job["path"]
    began = time.perf_counter()
    answer = _look(Found(**job["found"]))
    json.dump({**answer, "seconds": round(time.perf_counter() - began, 3)}, answers)
    answers.flush()
    os._exit(0)  # threads that an import started must not keep the answer waiting


def _look(found: Found) -> dict[str, Any]:
    try:
        kind = load(found)
        if not any(info.is_required() for info in kind.Options.model_fields.values()):
            build_host([PluginSpec(found.slot, found.name, found.distribution, found.version, "{}")], FACTS)
    except PluginError as error:
        wrong_api = _hook_api(found) not in _accepted()
        return {"kind": "incompatible" if wrong_api else "broken", "message": error.message, "detail": error.detail, "doubts": []}
    from asyncrl.hook_checks import hook_doubts

    return {"kind": "", "message": "", "detail": "", "doubts": hook_doubts(found.slot, kind)}


def _hook_api(found: Found) -> Any:
    """The hook API of a class that was refused; an accepted one where there is no class."""
    module, _, attribute = found.target.partition("[")[0].partition(":")
    try:
        return attrgetter(f"{attribute.strip()}.hook_api")(sys.modules[module.strip()])
    except (AttributeError, KeyError):
        return _accepted()[-1]


def _accepted() -> tuple[int, ...]:
    from asyncrl.hookspecs import ACCEPTED_HOOK_APIS

    return ACCEPTED_HOOK_APIS


if __name__ == "__main__":
    main()

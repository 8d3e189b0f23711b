"""Looks at a plugin in a process of its own: what importing and building it costs, loads and touches. One process for all its rules."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

from asyncrl.authoring import RunFacts
from asyncrl.cli.children import die_with_owner

HEAVY = ("torch", "ray", "transformers", "wandb", "tensorflow", "jax", "vllm", "sglang")
"""Packages that take seconds to import, or memory that a process may not have."""

TIMEOUT = 300.0


@dataclass(frozen=True)
class Probed:
    """What a fresh process found.

    Attributes:
        error: traceback of an import that failed, or ''.
        imported: those of `HEAVY` that the import brought in.
        import_seconds, empty_seconds: of the plugin's module, and of an empty one.
        touched: what the constructor did to the outside world.
        build_seconds: the quickest of three constructions.
        build_error: traceback of a construction that failed, or ''.
    """

    error: str = ""
    imported: list[str] = field(default_factory=list)
    import_seconds: float = 0.0
    empty_seconds: float = 1.0
    touched: list[str] = field(default_factory=list)
    build_seconds: float = 0.0
    build_error: str = ""


def probe(slot: str, target: str, options: str, run: RunFacts) -> Probed:
    """Return what a fresh process found; asked again, it is the same process's answer.

    Args:
        options: as JSON.
    """
    return _probe(slot, target, options, run, tuple(sys.path))


def probe_again(slot: str, target: str, options: str, run: RunFacts) -> Probed:
    """Ask a new process."""
    return _probe.__wrapped__(slot, target, options, run, tuple(sys.path))


@cache
def _probe(slot: str, target: str, options: str, run: RunFacts, path: Sequence[str]) -> Probed:
    job = {"path": path, "target": target, "options": options, "facts": asdict(run), "slot": slot, "heavy": HEAVY}
    script = Path(__file__).with_name("probe.py")
    done = subprocess.run(
        [sys.executable, "-P", str(script)],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        preexec_fn=die_with_owner,
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return Probed(error=f"the process ended with {done.returncode}:\n{done.stderr.strip()}")
    return Probed(**json.loads(lines[-1]))

"""Flags of `sglang.launch_server`: written as words, and looked up in what the installed version itself lists."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from asyncrl.errors import OptionError, ResourceError

ServerArgs: TypeAlias = dict[str, bool | int | float | str | list[int | float | str]]

OURS = {
    "model-path": "model",
    "model": "model",
    "host": "bind",
    "api-key": "bind",
    "admin-api-key": "bind",
    "port": "base_port",
    "device": "device",
    "dtype": "dtype",
    "random-seed": "seed",
    "tensor-parallel-size": "engine.tensor_parallel",
    "tp-size": "engine.tensor_parallel",
    "tp": "engine.tensor_parallel",
    "data-parallel-size": "engine.data_parallel",
    "dp-size": "engine.data_parallel",
    "dp": "engine.data_parallel",
    "mem-fraction-static": "engine.memory_fraction",
}
"""Flags that have an option of their own."""

HELP_TIMEOUT = 180.0

_WHERE = """
import importlib.util, sys
spec = importlib.util.find_spec("sglang")
if spec is None: sys.exit("no sglang")
from importlib.metadata import version
print(version("sglang"), spec.origin)
"""


def words(arguments: Mapping[str, bool | int | float | str | Sequence[str]]) -> list[str]:
    """Return the command line's words: `{"tp": 2, "sleep-on-idle": True}` gives ``--tp 2 --sleep-on-idle``."""
    line: list[str] = []
    for name, value in arguments.items():
        if value is False:
            continue
        line.append(f"--{name}")
        if value is not True:
            line += [str(item) for item in value] if isinstance(value, list | tuple) else [str(value)]
    return line


def check(python: str, arguments: Mapping[str, object], cache: Path) -> None:
    """Refuse what the SGLang of an interpreter can't be started with.

    Args:
        python: the interpreter.
        arguments: `server_args`.
        cache: where the list of flags is kept, which takes SGLang some 10 s to tell.

    Raises:
        ResourceError: it has no SGLang.
        OptionError: a flag that it does not know, or that has an option of its own.
    """
    for name in arguments:
        flag = name.replace("_", "-").lstrip("-")
        if flag in OURS:
            raise OptionError(f"--{flag} is set by {OURS[flag]}", origin="engine.server_args", remedy=f"set {OURS[flag]}")
    where = told_by(python, _WHERE)
    if where is None:
        raise ResourceError(
            f"{python} can't import sglang", origin="engine.python", remedy="name the python of an environment that has SGLang"
        )
    if not arguments:
        return
    version = where.split()[0]
    known = _known_flags(python, where, cache)
    for name in arguments if known else ():
        flag = name.replace("_", "-")
        if flag not in known:
            near = difflib.get_close_matches(flag, known, n=1, cutoff=0.5)
            raise OptionError(
                f"SGLang {version} has no flag --{flag}",
                origin="engine.server_args",
                remedy=f"did you mean --{near[0]}?" if near else f"{python} -m sglang.launch_server --help lists them",
            )


def told_by(python: str, code: str) -> str | None:
    """What an interpreter writes when it runs this; None where it fails, or is none."""
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=HELP_TIMEOUT)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else done.stdout


def _known_flags(python: str, where: str, cache: Path) -> list[str]:
    """Names of all flags, without dashes; none where the server can't tell (it may need a GPU for its help, too)."""
    kept = cache / f"sglang-flags-{hashlib.sha256(f'{python} {where}'.encode()).hexdigest()[:16]}.json"
    if kept.exists():
        flags: list[str] = json.loads(kept.read_text())
        return flags
    try:
        told = subprocess.run(
            [python, "-m", "sglang.launch_server", "--help"], capture_output=True, text=True, timeout=HELP_TIMEOUT
        )
    except subprocess.TimeoutExpired:
        return []
    flags = sorted(set(re.findall(r"--([a-z][\w-]+)", told.stdout)))
    if told.returncode or not flags:
        return []
    if cache.is_dir():
        temporary = kept.with_suffix(".new")
        temporary.write_text(json.dumps(flags))
        temporary.replace(kept)
    return flags

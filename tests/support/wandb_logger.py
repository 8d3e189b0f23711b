"""The wandb logger in a host, as the controller has it, and what it started."""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from asyncrl import RunFacts, RunHeader
from asyncrl.host import Active, Host
from asyncrl.metrics import Declared
from asyncrl_wandb import Wandb, WandbOptions

FACTS = RunFacts(batch_size=2, group_size=2, max_concurrent_samples=4, steps=3)
KEY = "k3yofauserthatnobodymayseeinanyfilexxxxx"
PATIENCE = 60.0


def logger(
    directory: Path,
    metrics: Sequence[Declared] = (),
    config: Mapping[str, Any] | None = None,
    resumed_step: int = -1,
    **options: Any,
) -> tuple[Host, Wandb]:
    """Start the logger, offline unless said otherwise."""
    kind = type("Wandb", (Wandb,), {"slot": "loggers", "name": "wandb"})
    plugin = kind(WandbOptions(**{"mode": "offline", **options}), FACTS)
    host = Host([Active("loggers", "wandb", "asyncrl-plugin-wandb", "0.1.0", plugin)])
    host.observe("log_start", header=RunHeader("my-run", directory, 3, config or {}, tuple(metrics), resumed_step))
    return host, plugin


@contextmanager
def own_environment(home: Path) -> Iterator[str]:
    """No W&B settings of whoever runs the tests, and a mark on everything that is started, of which nothing may be left, nor of
    its temporary files."""
    mark = f"mark-{uuid.uuid4().hex}"
    with tempfile.TemporaryDirectory() as temporary, pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("WANDB_")]:
            patch.delenv(name)
        patch.setenv("ASYNCRL_TEST_MARK", mark)
        patch.setenv("HOME", str(home))
        patch.setenv("NETRC", str(home / "netrc"))
        patch.setenv("TMPDIR", temporary)
        patch.setattr(tempfile, "tempdir", temporary)
        yield mark
        assert processes_with(mark) == []
        assert os.listdir(temporary) == []


def processes_with(mark: str) -> list[str]:
    """Command lines of the other processes that have the mark in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if mark.encode() in (entry / "environ").read_bytes():
                    found.append(f"{entry.name} {(entry / 'cmdline').read_bytes().replace(bytes(1), b' ').decode()}")
            except OSError:
                continue
    return found


def wait_until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited {PATIENCE} s for {what}"
        time.sleep(0.05)

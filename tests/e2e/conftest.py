"""Runs of the real command; see `live`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live import DEMO, Run, begin


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Any]:
    """Return a function that starts an `asyncrl` command on a run directory."""
    started: list[Run] = []

    def launched(*arguments: str, **options: Any) -> Run:
        started.append(begin(*arguments, cwd=tmp_path, **options))
        return started[-1]

    yield launched
    for run in started:
        run.clear()


@pytest.fixture
def start(launch: Any, tmp_path: Path, cache_dir: Path) -> Any:
    """Return a function that starts `asyncrl train` on the demo with more flags."""

    def started(*flags: str, file: Path = DEMO, name: str = "run", **options: Any) -> Run:
        runs = tmp_path / "runs"
        where = ("--name", name, "--runs-dir", str(runs), "--cache-dir", str(cache_dir))
        return launch("train", str(file), *where, *flags, directory=runs / name, **options)

    return started


@pytest.fixture
def resume(launch: Any) -> Any:
    """Return a function that starts `asyncrl resume` on a former run."""

    def resumed(run: Run, *flags: str, **options: Any) -> Run:
        return launch("resume", str(run.directory), *flags, directory=run.directory, **options)

    return resumed

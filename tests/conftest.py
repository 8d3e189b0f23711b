"""What several folders of tests share."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from live import shared_cache


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_cache(tmp_path_factory)


@pytest.fixture(scope="module")
def quiet() -> Iterator[None]:
    """No log of asyncrl's own: in long stories, waits are said again and again."""
    log = logging.getLogger("asyncrl")
    before = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(before)

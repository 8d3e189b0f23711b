"""Every distribution, built once as for a release."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the sdist and the wheel of each distribution, as `make build` makes them."""
    out = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, ROOT / "tools/release.py", "build", "--out", out], check=True, timeout=280)
    return out

"""With very many distributions installed, help and listing import no plugin and nothing heavy; `benchmarks/startup.py` has the times."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "benchmarks" / "startup.py"


@pytest.mark.parametrize("arguments", [["--help"], ["plugins", "list", "--json"]], ids=" ".join)
def test_nothing_is_imported_of_200_distributions(arguments: list[str], tmp_path: Path) -> None:
    """Field report 32."""
    spec = importlib.util.spec_from_file_location("startup", FILE)
    assert spec is not None and spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    slow = benchmark.install(tmp_path)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    assert not benchmark.imported(arguments, environment) & (slow | benchmark.HEAVY | {"pydantic", "pluggy", "numpy"})
    if "list" in arguments:
        done = subprocess.run(
            [sys.executable, "-m", "asyncrl", *arguments], env=environment, capture_output=True, text=True, timeout=120
        )
        listed = [one["name"] for one in json.loads(done.stdout) if one["name"].startswith("slow-")]
        assert listed == [f"slow-{index}" for index in range(benchmark.PLUGINS)]

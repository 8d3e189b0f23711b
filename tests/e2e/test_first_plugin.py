"""The pages that teach how to write and publish a plugin, run as they are written, by somebody with an environment of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from papers import ROOT, install_documented_plugins
from workshop import PATIENCE, Workshop

WRITE = ROOT / "docs/plugins/first-plugin.md"
PUBLISH = ROOT / "docs/plugins/publish.md"


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("workshop"), cache_dir)


@pytest.mark.minutes
@pytest.mark.parametrize("arguments", ["newest-first --declare order=lifo", "variance-score"])
@pytest.mark.long
def test_the_plugins_that_other_pages_show_keep_their_contract(arguments: str, tmp_path: Path) -> None:
    """Field report 40."""
    install_documented_plugins(tmp_path)
    command = [sys.executable, "-m", "asyncrl", "plugins", "test", *arguments.split()]
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(1800)
@pytest.mark.minutes
def test_the_first_plugin_is_written_tested_predicted_and_trained_with_as_its_page_says(workshop: Workshop) -> None:
    """Field report 40."""
    workshop.follow(WRITE)
    (metrics,) = workshop.folder.glob("runs/*/metrics.jsonl")
    assert "buffer/shuffle/overtaken/mean" in metrics.read_text()


@pytest.mark.minutes
@pytest.mark.long
def test_it_is_built_and_installed_as_the_page_on_publishing_says(workshop: Workshop) -> None:
    """Field report 40."""
    if not (workshop.folder / "asyncrl-plugin-shuffle").exists():
        pytest.skip("the plugin was not written")
    workshop.follow(PUBLISH)

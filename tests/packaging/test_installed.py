"""What users get: our wheels installed with pip into an environment that has nothing of this repository, and a stranger's beside them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from clean_environment import CleanEnvironment
from wandb_files import read_offline

pytestmark = [pytest.mark.minutes, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
WHERE = """
import json, sys
from importlib import import_module, metadata
tops = [top for top in metadata.packages_distributions() if top.startswith("asyncrl")]
print(json.dumps([{top: import_module(top).__file__ for top in tops}, sys.path]))
"""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, dist: Path) -> CleanEnvironment:
    """An environment after `pip install asyncrl`, with the demo's run file."""
    environment = CleanEnvironment(tmp_path_factory.mktemp("clean"))
    environment.install("asyncrl", archives=dist)
    shutil.copyfile(ROOT / "examples/demo.toml", environment.work / "demo.toml")
    return environment


@pytest.fixture(scope="module")
def complete(plain: CleanEnvironment, dist: Path) -> CleanEnvironment:
    """The same one after `pip install 'asyncrl[all]'`."""
    plain.install("asyncrl[all]", archives=dist)
    return plain


def plugins(environment: CleanEnvironment) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(environment.run("asyncrl", "plugins", "list", "--json"))
    return found


def first_party(folders: Iterable[Path]) -> set[str]:
    return {tomllib.loads((folder / "pyproject.toml").read_text())["project"]["name"] for folder in folders}


def train(environment: CleanEnvironment, name: str, cache_dir: Path, *flags: str) -> Path:
    """Run three steps of the demo; return the run directory."""
    command = ("asyncrl", "train", "demo.toml", "--steps", "3", "--name", name, "--cache-dir", str(cache_dir.resolve()))
    environment.run(*command, "--task.num-eval", "64", *flags, patience=480)
    directory = environment.work / "runs" / name
    assert json.loads((directory / "summary.json").read_text())["outcome"] == "completed"
    return directory


def series(directory: Path, name: str) -> list[tuple[float, float]]:
    """(train step, value) of a metric in `metrics.jsonl`."""
    lines = map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())
    return [(line["step"], line["values"][name]) for line in lines if line["axis"] == "train_step" and name in line["values"]]


@pytest.mark.long
def test_pip_install_asyncrl_brings_core_and_the_default_plugins_and_nothing_is_imported_from_here(
    plain: CleanEnvironment,
) -> None:
    files, path = json.loads(plain.run("python", "-P", "-c", WHERE))
    assert len(files) > 15
    assert all(Path(file).is_relative_to(plain.packages) for file in files.values()), files
    assert not any(Path(entry).is_relative_to(ROOT) for entry in path), path
    by_extra = ("loggers/wandb", "loggers/tensorboard", "engines/sglang", "evals/sglang")
    optional = {ROOT / "plugins" / place for place in by_extra}
    folders = {file.parent for file in ROOT.glob("plugins/*/*/pyproject.toml")} - optional
    assert {plugin["distribution"] for plugin in plugins(plain)} == first_party(folders)
    assert "all is well" in plain.run("asyncrl", "plugins", "check")


@pytest.mark.long
def test_pip_install_asyncrl_runs_the_demo(plain: CleanEnvironment, cache_dir: Path) -> None:
    directory = train(plain, "plain", cache_dir)
    assert [step for step, _ in series(directory, "rollout/reward_trained/mean")] == [1, 2, 3]


@pytest.mark.long
def test_the_extra_all_brings_every_plugin(complete: CleanEnvironment) -> None:
    folders = {file.parent for file in ROOT.glob("plugins/*/*/pyproject.toml")}
    assert {plugin["distribution"] for plugin in plugins(complete)} == first_party(folders)


def test_a_stranger_s_plugin_is_made_built_installed_trained_with_and_seen_in_wandb(
    complete: CleanEnvironment, cache_dir: Path
) -> None:
    complete.run("asyncrl", "plugins", "new", "buffer", "stranger")
    build = ("-m", "pip", "wheel", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", complete.work / "dist")
    source = complete.work / "asyncrl-plugin-stranger"
    subprocess.run([sys.executable, *build, source], check=True, capture_output=True, timeout=240)
    complete.install("asyncrl-plugin-stranger", archives=complete.work / "dist")
    shutil.move(source / "tests", complete.work / "tests")
    shutil.rmtree(source)  # what is installed is tested, and trained with

    assert " passed" in complete.run("python", "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests", patience=480)

    chosen = ("--buffer", "stranger", "--loggers", "console,jsonl,wandb", "--loggers.wandb.mode", "offline")
    directory = train(complete, "with-stranger", cache_dir, *chosen)
    written = read_offline(directory)
    assert written.config["buffer"] == {"name": "stranger", "capacity_factor": 2.0, "evict": True}
    for part in ("min", "mean", "max"):
        name = f"buffer/stranger/age/{part}"
        points = written.series(name, "train_step")
        assert [step for step, _ in points] == [1, 2, 3]
        assert points == series(directory, name)
        assert written.axes[name] == "train_step"

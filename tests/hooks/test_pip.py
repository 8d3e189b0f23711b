"""Plugins as a stranger meets them: built with setuptools, installed with pip into a clean environment, found by name.

The environment has every library of this one but no distribution of ours: core is on its path, plugins come from the wheels made here.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, replace
from pathlib import Path

import asyncrl
import pytest
from asyncrl.authoring import RunFacts
from asyncrl.plugins import PluginSpec
from fake_distributions import BUFFER_HOOKS

pytestmark = pytest.mark.slow

FACTS = RunFacts(batch_size=2, group_size=2, max_concurrent_samples=4, steps=3)
LEFT_OUT = ("asyncrl", "__editable__", "torch", "ray", "transformers", "wandb", "__pycache__", "pip")
BUFFER = (
    '''"""A buffer."""
from asyncrl import *
print("imported {package}")
class Mine(Plugin):
    Options = BufferOptions
    hook_api = 1
'''
    + BUFFER_HOOKS
)
PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "asyncrl-plugin-{name}"
version = "{version}"
description = "What {name} does."
dependencies = ["asyncrl-core{core}"]
[project.entry-points."asyncrl.buffers"]
{entry} = "{package}:Mine"
[tool.setuptools]
py-modules = ["{package}"]
"""


@dataclass(frozen=True)
class Environment:
    """A clean virtual environment. `wheels` is all that pip may install from."""

    python: Path
    wheels: Path
    sources: Path

    def build(self, *sources: Path) -> None:
        options = [
            "--no-index",
            "--no-deps",
            "--no-build-isolation",
            "--disable-pip-version-check",
            "--wheel-dir",
            str(self.wheels),
        ]
        run([sys.executable, "-m", "pip", "wheel", *options, *map(str, sources)])

    def pip(self, *arguments: str) -> None:
        run([sys.executable, "-m", "pip", "--python", str(self.python), "--disable-pip-version-check", *arguments])

    def install(self, *requirements: str) -> None:
        self.pip("install", "--no-index", "--find-links", str(self.wheels), "--no-deps", *requirements)

    def asyncrl(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        return run([str(self.python), "-m", "asyncrl", *arguments], code)

    def listed(self, text: str) -> list[tuple[str, str, str]]:
        """Name, distribution and version of each plugin that `plugins list --json` printed."""
        return [(one["name"], one["distribution"], one["version"]) for one in json.loads(text)]

    def build_host(self, *specs: PluginSpec) -> subprocess.CompletedProcess[str]:
        """Build plugins as an actor on another node would; prints the error, if any, as the controller gets it."""
        code = (
            "import pickle, sys\nfrom asyncrl.plugins import build_host\nspecs, facts = pickle.loads(sys.stdin.buffer.read())\n"
            "try: print(*build_host(specs, facts).actives)\n"
            "except Exception as error: print(type(pickle.loads(pickle.dumps(error))).__name__, error, error.exit_code)"
        )
        done = subprocess.run([self.python, "-c", code], input=pickle.dumps((specs, FACTS)), capture_output=True, timeout=120)
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def run(command: list[str], code: int = 0) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == code, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


def source(folder: Path, name: str, *, version: str = "1.0", entry: str = "", core: str = "", code: str = BUFFER) -> Path:
    """Write the sources of a distribution with one buffer plugin."""
    package = f"{name.replace('-', '_')}_{version.replace('.', '_')}"
    place = folder / package
    place.mkdir()
    text = PROJECT.format(name=name, version=version, core=core, entry=entry or name, package=package)
    (place / "pyproject.toml").write_text(text)
    (place / f"{package}.py").write_text(code.replace("{package}", package))
    return place


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    folder = tmp_path_factory.mktemp("clean")
    run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")])
    python = folder / "venv/bin/python"
    libraries = folder / "libraries"
    libraries.mkdir()
    for place in Path(sysconfig.get_paths()["purelib"]).iterdir():
        builds = place.name.startswith(("setuptools-", "wheel-"))  # their metadata names the commands that build
        if not place.name.startswith(LEFT_OUT) and (builds or place.suffix not in (".dist-info", ".pth")):
            (libraries / place.name).symlink_to(place)
    (libraries / "asyncrl").symlink_to(Path(asyncrl.__file__).parent)
    site = run([str(python), "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"]).stdout.strip()
    (Path(site) / "libraries.pth").write_text(f"{libraries}\n")
    sources = folder / "sources"
    sources.mkdir()
    environment = Environment(python, folder / "wheels", sources)
    environment.build(
        source(sources, "newest"),
        source(sources, "rival", entry="newest"),
        source(sources, "broken", core=">=99", code="from asyncrl import NoSuchName\n"),
        source(sources, "noisy", code="raise SystemExit('it ends the process')\n"),
    )
    environment.install("asyncrl-plugin-newest", "asyncrl-plugin-broken", "asyncrl-plugin-noisy")
    return environment


def test_a_stranger_s_plugin_is_installed_and_found_and_only_the_chosen_one_is_imported(env: Environment) -> None:
    """Field reports 28 and 32: also beside a broken one and one that would end the process."""
    listed = env.asyncrl("plugins", "list", "--json")
    assert env.listed(listed.stdout) == [
        ("broken", "asyncrl-plugin-broken", "1.0"),
        ("newest", "asyncrl-plugin-newest", "1.0"),
        ("noisy", "asyncrl-plugin-noisy", "1.0"),
    ]
    assert "imported" not in listed.stdout + listed.stderr
    shown = env.asyncrl("train", "--buffer", "newest", "--help")
    assert "--buffer.capacity-factor" in shown.stdout
    assert (shown.stderr, "imported" in shown.stdout) == ("imported newest_1_0\n", False)
    assert "from asyncrl-plugin-newest 1.0, newest_1_0:Mine" in env.asyncrl("plugins", "info", "newest").stdout


def test_a_broken_plugin_that_is_chosen_is_named_with_what_it_needs_and_has(env: Environment) -> None:
    """Field report 29."""
    shown = env.asyncrl("train", "--buffer", "broken", "--help", code=3).stderr.splitlines()
    assert shown[0].startswith(
        "asyncrl: error: buffer plugin 'broken' (asyncrl-plugin-broken 1.0, broken_1_0:Mine) can't be loaded: ImportError: cannot import"
    )
    assert shown[1] == "  Traceback (most recent call last):"
    shown = env.asyncrl("train", "--buffer", "noisy", "--help", code=3).stderr.splitlines()
    assert shown[0].endswith("can't be loaded: SystemExit: it ends the process")


def test_of_two_distributions_with_one_name_the_user_picks(env: Environment) -> None:
    """Field report 31."""
    env.install("asyncrl-plugin-rival")
    refused = env.asyncrl("train", "--buffer", "newest", "--help", code=2).stderr
    assert "'newest' is offered by asyncrl-plugin-newest 1.0 and asyncrl-plugin-rival 1.0" in refused
    assert "write asyncrl-plugin-newest:newest or asyncrl-plugin-rival:newest" in refused
    assert env.asyncrl("train", "--buffer", "asyncrl-plugin-rival:newest", "--help").stderr == "imported rival_1_0\n"
    env.pip("uninstall", "--yes", "asyncrl-plugin-rival")
    assert env.asyncrl("train", "--buffer", "newest", "--help").stderr == "imported newest_1_0\n"


def test_a_node_with_another_version_says_so_before_it_imports_anything(env: Environment) -> None:
    """Field report 35."""
    installed = PluginSpec("buffer", "newest", "asyncrl-plugin-newest", "1.0", "{}")
    done = env.build_host(installed, replace(installed, version="2.0"))
    assert done.stdout.startswith("PluginMismatch node ")
    assert "wanted buffer plugin 'newest' of asyncrl-plugin-newest 2.0, found version 1.0 " in done.stdout
    assert "imported" not in done.stderr
    assert env.build_host(installed).stdout == "buffer plugin 'newest' (asyncrl-plugin-newest 1.0)\n"


def test_an_editable_install_is_listed_once_also_from_its_own_folder(env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Field report 39."""
    place = source(env.sources, "edited")
    env.pip("install", "--no-index", "--no-deps", "--no-build-isolation", "--editable", str(place))
    monkeypatch.chdir(place)
    run([sys.executable, "-c", "import setuptools; setuptools.setup()", "--quiet", "egg_info"])  # older tools leave it there
    assert [one for one in env.listed(env.asyncrl("plugins", "list", "--json").stdout) if one[0] == "edited"] == [
        ("edited", "asyncrl-plugin-edited", "1.0")
    ]
    assert env.asyncrl("train", "--buffer", "edited", "--help").stderr == "imported edited_1_0\n"

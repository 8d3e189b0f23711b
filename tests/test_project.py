"""The project's own papers agree with its code: versions, folders, dependencies, README, Makefile."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import asyncrl
import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from papers import PAPERS, blocks, relative

ROOT = Path(__file__).resolve().parent.parent
PLUGINS = sorted(path.parent for path in ROOT.glob("plugins/*/*/pyproject.toml"))
DISTRIBUTIONS = [ROOT / "core", *PLUGINS, ROOT]
README = (ROOT / "README.md").read_text()
MAKE_TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def project(folder: Path) -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return table


def requirements(folder: Path) -> list[Requirement]:
    table = project(folder)
    lines = [
        *table.get("dependencies", []),
        *(line for extra in table.get("optional-dependencies", {}).values() for line in extra),
    ]
    return [Requirement(line) for line in lines]


def entry_points() -> dict[str, set[str]]:
    """Every first-party plugin as its pyproject.toml declares it: {slot's group: names}."""
    found: dict[str, set[str]] = {}
    for folder in PLUGINS:
        for group, names in project(folder).get("entry-points", {}).items():
            found.setdefault(group, set()).update(names)
    return found


def readme_blocks(language: str) -> list[str]:
    return [block.text for block in blocks(ROOT / "README.md") if block.language == language]


# Distributions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", DISTRIBUTIONS, ids=relative)
def test_every_distribution_has_the_one_version_and_pins_the_others_to_it(folder: Path) -> None:
    assert project(folder).get("version") == (asyncrl.__version__ if folder.name != "core" else None), "make version V=..."
    for requirement in requirements(folder):
        if requirement.name.startswith("asyncrl"):
            assert str(requirement.specifier) == f"=={asyncrl.__version__}", requirement


@pytest.mark.parametrize("folder", DISTRIBUTIONS, ids=relative)
def test_every_distribution_says_licence_python_and_readme(folder: Path) -> None:
    table = project(folder)
    assert table["license"] == "Apache-2.0"
    assert table["requires-python"] == ">=3.11"
    assert (folder / table["readme"]).exists()


@pytest.mark.parametrize("folder", PLUGINS, ids=relative)
def test_every_plugin_folder_has_a_readme_one_package_and_tests(folder: Path) -> None:
    assert (folder / "README.md").read_text().startswith(f"# {project(folder)['name']}\n")
    assert len(list(folder.glob("*/__init__.py"))) == 1
    tests = [file.read_text() for file in folder.glob("tests/test_*.py")]
    assert tests, "a plugin's tests live with it"
    assert any(re.search(r"^class Test\w+\(\w+Suite\):", text, re.MULTILINE) for text in tests), (
        "the suite of its slot is one of them"
    )


def test_the_root_distribution_brings_every_first_party_plugin() -> None:
    brought = {requirement.name for requirement in requirements(ROOT)}
    assert brought >= {project(folder)["name"] for folder in [ROOT / "core", *PLUGINS]}


# Dependencies ---------------------------------------------------------------------------------------------------------


def documented() -> dict[str, dict[str, str]]:
    """The tables of docs/dependencies.md: {distribution: {dependency: licence}}."""
    found: dict[str, dict[str, str]] = {}
    section = ""
    for line in (ROOT / "docs/dependencies.md").read_text().splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif line.startswith("| ") and not line.startswith("| name "):
            name, licence, why = (cell.strip() for cell in line.strip("|").split("|"))
            assert licence and why, line
            found.setdefault(section, {})[name] = licence
    return found


def test_every_dependency_is_documented_and_nothing_else_is() -> None:
    wanted = {
        project(folder)["name"]: {
            requirement.name for requirement in requirements(folder) if not requirement.name.startswith("asyncrl")
        }
        for folder in DISTRIBUTIONS
    }
    tables = documented()
    tools = set(tables.pop("Development"))
    assert {name: set(table) for name, table in tables.items()} == {name: needed for name, needed in wanted.items() if needed}
    lines = (ROOT / "requirements/dev.txt").read_text().splitlines()
    assert tools == {line for line in lines if line and not line.startswith("#")} | {"setuptools", "wheel"}


def test_every_dependency_has_one_exact_version_in_the_constraints() -> None:
    lines = (ROOT / "requirements/constraints.txt").read_text().split()
    pinned = [canonicalize_name(line.split("==")[0]) for line in lines if re.fullmatch(r"[\w.-]+==[\w.]+", line)]
    assert len(pinned) == len(lines) == len(set(pinned))
    needed = {canonicalize_name(name) for table in documented().values() for name in table}
    assert needed <= set(pinned)


# README, Makefile -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", sorted(entry_points()))
def test_the_readme_lists_exactly_the_first_party_plugins_of_every_slot(group: str) -> None:
    slots = {group.removeprefix("asyncrl."), group.removeprefix("asyncrl.").removesuffix("s")}
    rows = [line for line in README.splitlines() if re.match(r"\| `(\w+)`", line) and line.split("`")[1] in slots]
    assert len(rows) == 1
    assert set(re.findall(r"`([^`]+)`", rows[0])[1:]) == entry_points()[group]


@pytest.mark.parametrize("paper", PAPERS, ids=relative)
def test_make_targets_in_the_papers_exist(paper: Path) -> None:
    named = re.findall(r"(?:`|^)make (?:[A-Z]+=\S+ )*([a-z-]+)", paper.read_text(), re.MULTILINE)
    assert set(named) <= MAKE_TARGETS


def test_every_make_target_is_phony_and_has_its_line_in_the_help() -> None:
    shown = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"^ +make ([\w-]+) +\S", shown, re.MULTILINE)) == MAKE_TARGETS
    assert {"demo", "test", "check", "bench", "docs", "clean", "help"} <= MAKE_TARGETS


def test_the_readmes_buffer_plugin_works() -> None:
    """Field report 40: what is documented runs."""
    namespace: dict[str, Any] = {}
    exec(compile(readme_blocks("python")[0], "README.md", "exec"), namespace)
    kind = namespace["NewestFirst"]
    buffer = kind(
        kind.Options(capacity_factor=1.0), asyncrl.RunFacts(batch_size=2, group_size=1, max_concurrent_samples=2, steps=1)
    )
    older, newer = (asyncrl.Group(asyncrl.Prompt(index, np.zeros(1, np.int32)), ()) for index in range(2))
    assert buffer.buffer_put(older) == buffer.buffer_put(newer) == asyncrl.ACCEPTED
    assert buffer.buffer_put(newer) == asyncrl.FULL
    state = buffer.buffer_state()
    assert buffer.buffer_take(0) == asyncrl.taken(newer)
    assert buffer.buffer_restore(state) == asyncrl.Restored()
    assert buffer.buffer_size() == 2

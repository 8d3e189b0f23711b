"""Wheels and sdists of all distributions: what is in them, what is not, and that either is made from the other's sources."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any

import asyncrl
import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
FOLDERS = [ROOT / "core", *sorted(file.parent for file in ROOT.glob("plugins/*/*/pyproject.toml")), ROOT]
WHEELS = """
import os, sys
from setuptools import build_meta
for folder in sys.argv[2:]:
    if not (child := os.fork()):  # setuptools builds only once in a process
        os.chdir(folder)
        build_meta.build_wheel(sys.argv[1])
        os._exit(0)
    os.waitpid(child, 0)
"""
each = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(ROOT)))


def project(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text())["project"]


def stem(folder: Path) -> str:
    return f"{project(folder)['name'].replace('-', '_')}-{asyncrl.__version__}"


def read_wheel(place: Path, folder: Path) -> dict[str, bytes]:
    """{path: content} of a distribution's wheel."""
    with zipfile.ZipFile(place / f"{stem(folder)}-py3-none-any.whl") as wheel:
        return {name: wheel.read(name) for name in wheel.namelist()}


def read_sdist(place: Path, folder: Path) -> dict[str, bytes]:
    """{path: content} of a distribution's sdist, without its top folder and without the metadata of setuptools."""
    with tarfile.open(place / f"{stem(folder)}.tar.gz") as sdist:
        members = [member for member in sdist.getmembers() if not member.isdir()]
        assert all(member.isfile() and member.name.startswith(f"{stem(folder)}/") for member in members), (
            "links can't be unpacked everywhere"
        )
        found = {member.name.partition("/")[2]: sdist.extractfile(member).read() for member in members}  # type: ignore[union-attr]
    return {name: text for name, text in found.items() if ".egg-info/" not in name and name not in ("setup.cfg", "PKG-INFO")}


def sources(folder: Path) -> dict[str, bytes]:
    """What the packages of a distribution have in the repository: {path: content}."""
    packages = [] if folder == ROOT else [file.parent for file in folder.glob("*/__init__.py")]
    files = [file for package in packages for file in package.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def metadata(wheel: dict[str, bytes], folder: Path) -> Message:
    return Parser().parsestr(wheel[f"{stem(folder)}.dist-info/METADATA"].decode())


@each
def test_a_wheel_has_the_package_its_metadata_and_nothing_else(dist: Path, folder: Path) -> None:
    wheel = read_wheel(dist, folder)
    info = f"{stem(folder)}.dist-info/"
    about = {name.removeprefix(info) for name in wheel if name.startswith(info)}
    entry_points = {"entry_points.txt"} if folder != ROOT else set()
    assert about == {"METADATA", "WHEEL", "RECORD", "top_level.txt", "licenses/LICENSE"} | entry_points
    assert {name: text for name, text in wheel.items() if not name.startswith(info)} == sources(folder)
    assert wheel[f"{info}licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()


@each
def test_an_sdist_has_the_package_licence_readme_and_project_and_nothing_else(dist: Path, folder: Path) -> None:
    about = {name: (folder / name).read_bytes() for name in ("LICENSE", "README.md", "pyproject.toml")}
    assert read_sdist(dist, folder) == sources(folder) | about


@each
def test_the_metadata_is_complete(dist: Path, folder: Path) -> None:
    found, wanted = metadata(read_wheel(dist, folder), folder), project(folder)
    assert (found["Name"], found["Version"], found["Summary"]) == (wanted["name"], asyncrl.__version__, wanted["description"])
    assert (found["License-Expression"], found["License-File"], found["Requires-Python"]) == ("Apache-2.0", "LICENSE", ">=3.11")
    assert found["Description-Content-Type"] == "text/markdown"
    assert found.get_payload().strip() == (folder / "README.md").read_text().strip()
    assert set(found.get_all("Provides-Extra", [])) == set(wanted.get("optional-dependencies", {}))


def test_core_has_its_types_and_the_templates_of_new_plugins(dist: Path) -> None:
    wheel = read_wheel(dist, ROOT / "core")
    assert "asyncrl/py.typed" in wheel
    assert {"asyncrl/templates/pyproject.toml.txt", "asyncrl/templates/README.md.txt", "asyncrl/templates/test_buffer.py"} <= set(
        wheel
    )


@pytest.fixture(scope="module")
def from_sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of wheels that were made from copies of the distributions' folders, tests included."""
    out, copies = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("sources")
    folders = []
    for number, folder in enumerate(FOLDERS):
        for file in [*folder.glob("*.*"), folder / "LICENSE"]:
            if file.is_file():
                (copies / str(number)).mkdir(exist_ok=True)
                (copies / str(number) / file.name).write_bytes(file.read_bytes())
        tests = {} if folder == ROOT else {"tests/test_nothing.py": b"", "tests/__init__.py": b""}
        for name, text in {**sources(folder), **tests}.items():
            (copies / str(number) / name).parent.mkdir(parents=True, exist_ok=True)
            (copies / str(number) / name).write_bytes(text)
        folders.append(str(copies / str(number)))
    subprocess.run([sys.executable, "-c", WHEELS, out, *folders], check=True, capture_output=True, timeout=280)
    return out


@each
def test_a_wheel_from_the_sdist_is_the_wheel_from_the_sources(dist: Path, from_sources: Path, folder: Path) -> None:
    assert read_wheel(dist, folder) == read_wheel(from_sources, folder)


def test_extras_name_what_is_built_and_all_names_what_they_name() -> None:
    extras = project(ROOT)["optional-dependencies"]
    names = {project(folder)["name"] for folder in FOLDERS}
    assert {Requirement(line).name for lines in extras.values() for line in lines} <= names
    everything = extras.pop("all")
    assert sorted(everything) == sorted(line for lines in extras.values() for line in lines)

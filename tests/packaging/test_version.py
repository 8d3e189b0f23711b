"""One place for the version: what `make version` writes."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import asyncrl
import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """What `make version` reads and writes, elsewhere."""
    for file in [*ROOT.glob("core/pyproject.toml"), *ROOT.glob("plugins/*/*/pyproject.toml"), *ROOT.glob("*.toml")]:
        (tmp_path / file.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, tmp_path / file.relative_to(ROOT))
    for name in ("core/asyncrl/__init__.py", "tools/release.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    return tmp_path


def write_version(root: Path, version: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, root / "tools/release.py", "version", version]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def texts(root: Path) -> dict[Path, str]:
    return {file.relative_to(root): file.read_text() for file in sorted(root.rglob("*")) if file.suffix in (".toml", ".py")}


def test_one_command_gives_all_distributions_a_version(copy: Path) -> None:
    assert write_version(copy, "1.2.3rc1").returncode == 0
    assert '\n__version__ = "1.2.3rc1"\n' in (copy / "core/asyncrl/__init__.py").read_text()
    files = list(copy.rglob("pyproject.toml"))
    assert len(files) > 15
    for file in files:
        project = tomllib.loads(file.read_text())["project"]
        assert project.get("version") == ("1.2.3rc1" if "dynamic" not in project else None)
        extras = project.get("optional-dependencies", {}).values()
        for wanted in map(Requirement, [*project["dependencies"], *(line for extra in extras for line in extra)]):
            assert not wanted.name.startswith("asyncrl") or str(wanted.specifier) == "==1.2.3rc1", f"{file}: {wanted}"


def test_nothing_but_versions_changes_and_back_again_nothing_has(copy: Path) -> None:
    before = texts(copy)
    write_version(copy, "1.2.3rc1")
    for file, text in texts(copy).items():
        assert text.replace("1.2.3rc1", asyncrl.__version__) == before[file]
    write_version(copy, asyncrl.__version__)
    assert texts(copy) == before


def test_what_is_no_version_is_refused(copy: Path) -> None:
    before = texts(copy)
    done = write_version(copy, "next")
    assert (done.returncode, re.findall("next", done.stderr)) == (1, ["next"])
    assert texts(copy) == before


def test_core_takes_its_version_from_its_code() -> None:
    core = tomllib.loads((ROOT / "core/pyproject.toml").read_text())
    assert core["project"]["dynamic"] == ["version"]
    assert core["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "asyncrl.__version__"}

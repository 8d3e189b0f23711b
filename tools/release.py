"""Versions and archives of all distributions: `python tools/release.py version 0.2.0`, `python tools/release.py build`.

The version is `asyncrl.__version__` in core. A distribution can't read another one's files once it is packed, so that `version` writes
it into each pyproject.toml too. `build` makes an sdist of each distribution, and its wheel from nothing but that sdist.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).resolve().parent.parent
SOURCE = "core/asyncrl/__init__.py"
BUILD = """
import os, shutil, sys
from setuptools import build_meta
out, work = sys.argv[1:]
sdist = build_meta.build_sdist(out)
shutil.unpack_archive(os.path.join(out, sdist), work, filter="data")
os.chdir(os.path.join(work, sdist.removesuffix(".tar.gz")))
print(sdist, build_meta.build_wheel(out))
"""


def distributions(root: Path = ROOT) -> list[Path]:
    """Return the folder of each distribution, what the others depend on first."""
    return [root / "core", *sorted(file.parent for file in root.glob("plugins/*/*/pyproject.toml")), root]


def write_version(version: str, root: Path = ROOT) -> None:
    """Make `version` that of core, of every other distribution, and of what they ask of each other."""
    source = root / SOURCE
    source.write_text(re.sub(r'(?m)^__version__ = ".*"$', f'__version__ = "{version}"', source.read_text()))
    for folder in distributions(root):
        file = folder / "pyproject.toml"
        text = re.sub(r'(?m)^version = ".*"$', f'version = "{version}"', file.read_text())
        file.write_text(re.sub(r'"(asyncrl-[a-z-]+(?:\[[a-z,]+\])?)==[^"]+"', rf'"\1=={version}"', text))


def copy(folder: Path, target: Path) -> None:
    """Copy what git knows of a distribution, or would not ignore; neither its tests nor other distributions."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        inner = "/" in name
        if (folder / name).is_file() and not (inner and (folder == ROOT or name.startswith("tests/"))):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / name, target / name)


def build(out: Path) -> None:
    """Build every distribution from copies: what older builds left in the working tree gets into none of them."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for number, folder in enumerate(distributions()):
            copy(folder, place := Path(scratch, str(number), "source"))
            command = [sys.executable, "-c", BUILD, str(out.resolve()), str(place.parent / "sdist")]
            done = subprocess.run(command, cwd=place, capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"{folder} can't be built:\n{done.stdout}{done.stderr}")
            print(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("version", help="give all distributions a version").add_argument("version", metavar="VERSION")
    commands.add_parser("build", help="build all distributions").add_argument("--out", type=Path, default=ROOT / "dist")
    arguments = parser.parse_args()
    if arguments.command == "build":
        build(arguments.out)
        return
    try:
        write_version(str(Version(arguments.version)))
    except InvalidVersion as error:
        sys.exit(f"{error} (versions are like 0.2.0 or 0.2.0rc1)")


if __name__ == "__main__":
    main()

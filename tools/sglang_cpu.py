"""Make the environment of a real SGLang server without a GPU: `python tools/sglang_cpu.py [FOLDER]` (2.2 GB, a minute or two).

An environment of its own, because SGLang pins exact versions of torch and transformers. It is made once: a second call costs nothing
until requirements/sglang-cpu.txt changes. `ASYNCRL_SGLANG_VENV` names one that exists already. Prints the interpreter's path.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements" / "sglang-cpu.txt"
SHIM = ROOT / "tools" / "sglang_cpu_shim"
WITHOUT_DEPENDENCIES = ("sglang", "torchvision")


def install(folder: Path) -> Path:
    """Install the server into `folder` unless it is there; return its interpreter."""
    stamp, python = folder / ".installed", folder / "bin" / "python"
    wanted = _fingerprint()
    if not python.exists() or not stamp.exists() or stamp.read_text() != wanted:
        print(f"installing a SGLang server for CPUs into {folder} (2.2 GB)", file=sys.stderr, flush=True)
        began = time.monotonic()
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        lines = [line for line in REQUIREMENTS.read_text().splitlines() if line and not line.startswith("#")]
        bare = [line for line in lines if re.split(r"[=<>]", line)[0] in WITHOUT_DEPENDENCIES]
        _pip(python, *(line for line in lines if line not in bare))
        _pip(python, "--no-deps", *bare)
        for source in _shim():
            target = _site_packages(python) / source.relative_to(SHIM)
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(source, target)
        stamp.write_text(wanted)
        print(f"done in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return python


def _pip(python: Path, *arguments: str) -> None:
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments], check=True)


def _site_packages(python: Path) -> Path:
    told = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], check=True, capture_output=True, text=True
    )
    return Path(told.stdout.strip())


def _fingerprint() -> str:
    digest = hashlib.sha256(REQUIREMENTS.read_bytes())
    for source in _shim():
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _shim() -> list[Path]:
    return sorted(file for file in SHIM.rglob("*") if file.suffix in (".py", ".pth"))


def main() -> None:
    given = os.environ.get("ASYNCRL_SGLANG_VENV")
    if len(sys.argv) > 1:
        folder = Path(sys.argv[1])
    elif given:
        folder = Path(given)
        if not (folder / "bin" / "python").exists():
            sys.exit(f"ASYNCRL_SGLANG_VENV is {given}, and {folder / 'bin' / 'python'} does not exist")
        print(folder / "bin" / "python")
        return
    else:
        folder = ROOT / ".venv-sglang"
    print(install(folder.absolute()))


if __name__ == "__main__":
    main()

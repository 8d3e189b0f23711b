"""A virtual environment as a user has it: every library of this one is there, and of our distributions only what is installed into it."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

LEFT_OUT = ("asyncrl", "__editable__", "pip", "__pycache__")


class CleanEnvironment:
    """Made in `folder`. Libraries are links into this environment, so that nothing is fetched; our editable installs are not among them.

    Attributes:
        packages: its site-packages.
        work: a directory to work in, with nothing in it.
    """

    def __init__(self, folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True)
        self._bin = folder / "env/bin"
        (self.packages,) = folder.glob("env/lib/python*/site-packages")
        self.work = folder / "work"
        self.work.mkdir()
        libraries = folder / "libraries"
        libraries.mkdir()
        for place in Path(sysconfig.get_paths()["purelib"]).iterdir():
            if not place.name.startswith(LEFT_OUT) and place.suffix != ".pth":
                (libraries / place.name).symlink_to(place)
        (self.packages / "libraries.pth").write_text(f"{libraries}\n")

    def install(self, *requirements: str, archives: Path) -> None:
        """Install with pip, its dependencies too; what is not there already comes from `archives`."""
        command = ("--python", str(self._bin / "python"), "--disable-pip-version-check", "install", "--no-index")
        self._run(sys.executable, "-m", "pip", *command, "--find-links", str(archives), *requirements)

    def run(self, program: str, *arguments: str, patience: float = 240.0, **variables: str) -> str:
        """Run one of the environment's programs in `work`; return what it printed. It has to succeed."""
        return self._run(str(self._bin / program), *arguments, patience=patience, **variables)

    def _run(self, *command: str, patience: float = 240.0, **variables: str) -> str:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_", "PYTEST", "WANDB"))}
        done = subprocess.run(
            command,
            cwd=self.work,
            env={**kept, "HOME": str(self.work), "OMP_NUM_THREADS": "1", **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=patience,
        )
        assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}"
        return done.stdout

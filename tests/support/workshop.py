"""A place to follow a page of the docs in, as somebody with an environment of their own does."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from papers import ROOT, blocks, commands

PATIENCE = 280.0


class Workshop:
    """A working directory, and a virtual environment that sees what is installed here and takes in what is installed into it."""

    def __init__(self, folder: Path, cache_dir: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        environment = folder / "env"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
        site = next(environment.glob("lib/python*/site-packages"))
        (site / "parent.pth").write_text(f"import site; site.addsitedir({sysconfig.get_paths()['purelib']!r})\n")
        command = environment / "bin/asyncrl"
        command.write_text(f"#!{environment}/bin/python\nimport sys\nfrom asyncrl.cli.main import main\nsys.exit(main())\n")
        command.chmod(0o755)
        (folder / "examples").symlink_to(ROOT / "examples")
        (folder / "cache").mkdir()
        (folder / "cache/asyncrl").symlink_to(cache_dir)
        self._env = {
            **os.environ,
            "PATH": f"{environment}/bin{os.pathsep}{os.environ['PATH']}",
            "XDG_CACHE_HOME": str(folder / "cache"),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(folder / "dist"),
            "OMP_NUM_THREADS": "1",
        }

    def follow(self, page: Path, *, new: tuple[str, ...] = (), instead: Mapping[str, str] | None = None) -> None:
        """Write each file and run each command of a page, in the order in which they stand there.

        Args:
            new: files that the page adds to those of `asyncrl plugins new`.
            instead: what is put in place of some texts of the commands, such as a port that may be taken.
        """
        steps = [(block.line, block) for block in blocks(page) if block.file]
        for _, step in sorted([*steps, *((command.line, command) for command in commands(page))], key=lambda step: step[0]):
            if hasattr(step, "file"):
                file = self.folder / step.file
                assert file.exists() or step.file in new, f"{step}: `asyncrl plugins new` makes no {step.file}"
                file.write_text(step.text)
            else:
                text = step.text
                for old, other in (instead or {}).items():
                    text = text.replace(old, other)
                self.run(text, step.output)

    def run(self, command: str, output: str) -> None:
        done = subprocess.run(
            shlex.split(command), cwd=self.folder, env=self._env, capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
        assert output in done.stdout, f"{command} printed\n{done.stdout}"

"""The pages that teach how to write and publish a plugin, run as they are written, by somebody with an environment of their own."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from papers import ROOT, blocks, commands, install_documented_plugins

PATIENCE = 280.0
WRITE = ROOT / "docs/plugins/first-plugin.md"
PUBLISH = ROOT / "docs/plugins/publish.md"


class Workshop:
    """A working directory, and a virtual environment that sees what is installed here and takes in what is installed into it."""

    def __init__(self, folder: Path, cache_dir: Path) -> None:
        self.folder = folder
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

    def follow(self, page: Path) -> None:
        """Write each file and run each command of a page, in the order in which they stand there."""
        steps = [(block.line, block) for block in blocks(page) if block.file]
        for _, step in sorted([*steps, *((command.line, command) for command in commands(page))], key=lambda step: step[0]):
            if hasattr(step, "file"):
                file = self.folder / step.file
                assert file.exists(), f"{step}: `asyncrl plugins new` makes no {step.file}"
                file.write_text(step.text)
            else:
                self.run(step.text, step.output)

    def run(self, command: str, output: str) -> None:
        done = subprocess.run(
            shlex.split(command), cwd=self.folder, env=self._env, capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
        assert output in done.stdout, f"{command} printed\n{done.stdout}"


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("workshop"), cache_dir)


@pytest.mark.minutes
@pytest.mark.parametrize("arguments", ["newest-first --declare order=lifo", "variance-score"])
def test_the_plugins_that_other_pages_show_keep_their_contract(arguments: str, tmp_path: Path) -> None:
    """Field report 40."""
    install_documented_plugins(tmp_path)
    command = [sys.executable, "-m", "asyncrl", "plugins", "test", *arguments.split()]
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(600)
@pytest.mark.minutes
def test_the_first_plugin_is_written_tested_predicted_and_trained_with_as_its_page_says(workshop: Workshop) -> None:
    """Field report 40."""
    workshop.follow(WRITE)
    (metrics,) = workshop.folder.glob("runs/*/metrics.jsonl")
    assert "buffer/shuffle/overtaken/mean" in metrics.read_text()


@pytest.mark.minutes
def test_it_is_built_and_installed_as_the_page_on_publishing_says(workshop: Workshop) -> None:
    """Field report 40."""
    if not (workshop.folder / "asyncrl-plugin-shuffle").exists():
        pytest.skip("the plugin was not written")
    workshop.follow(PUBLISH)

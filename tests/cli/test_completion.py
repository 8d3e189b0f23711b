"""Tab completion: what the last word may become, without an import of any plugin, and the scripts in the shells that are here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from asyncrl.cli import complete
from asyncrl.cli.complete import SHELLS, candidates
from asyncrl.cli.completion import SCRIPTS
from asyncrl.cli.eval import USES
from asyncrl.cli.main import COMMANDS, main
from asyncrl.plugins import SLOTS, discover
from asyncrl.run_options import RunOptions
from fake_distributions import install, install_toys

BREAKS = """ \\t\\n\\"\\'><=;|&(:"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The toys are installed, a plugin that can't be imported, and a name that two distributions offer."""
    install_toys(tmp_path)
    install(tmp_path, "broken", {"asyncrl.buffers": {"broken": "no_such_module:C"}})
    for name in ("dist-one", "dist-two"):
        install(tmp_path, name, {"asyncrl.buffers": {"twice": "toy_plugins:ToyBuffer"}})
    catalog = discover([str(tmp_path)])
    monkeypatch.setattr(complete, "discover", lambda: catalog)
    return tmp_path


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", [*COMMANDS, "--help", "--version"]),
        ("si", ["simulate"]),
        ("train --buffer ", ["broken", "fifo", "priority", "dist-one:twice", "dist-two:twice"]),
        ("train --buffer=f", ["--buffer=fifo"]),
        ("train --buffer dist-t", ["dist-two:twice"]),
        ("train run.toml --loggers ", ["console", "jsonl"]),
        ("train --loggers console,", ["console,jsonl"]),
        ("train --publish-mode ", ["retract", "in_place"]),
        ("train --eval-before-training=", ["--eval-before-training=true", "--eval-before-training=false"]),
        ("train --eval-before-training ", []),
        ("train --no-eval-b", ["--no-eval-before-training"]),
        ("train --max_con", []),
        ("train --max-con", ["--max-concurrent-samples"]),
        ("train ", []),
        ("train --model ", []),
        ("simulate --comp", ["--compare"]),
        ("simulate --simulate.eng", ["--simulate.engines"]),
        ("train --simulate.eng", []),
        ("plugins ", ["list", "info", "new", "test", "check", "--help"]),
        ("plugins info fi", ["fifo", "from-file"][:1]),
        ("plugins info loggers:", ["loggers:console", "loggers:jsonl"]),
        ("plugins info fifo ", []),
        ("plugins check fifo pri", ["priority"]),
        ("plugins new ", list(SLOTS)),
        ("plugins new buffer ", []),
        ("plugins new buffer mine --pa", ["--path"]),
        ("plugins new buffer mine --path ", []),
        ("completion ", list(SHELLS)),
        ("nonsense ", []),
        ("train --nonsense ", []),
    ],
)
def test_the_last_word_becomes_what_may_stand_there(line: str, expected: list[str], site: Path) -> None:
    assert candidates(line.split(" ")) == expected


@pytest.mark.parametrize("command", [command for command in COMMANDS if command not in ("plugins", "completion")])
def test_every_option_of_core_and_every_slot_is_offered_and_none_that_is_not_there(command: str, site: Path) -> None:
    offered = candidates([command, "--"])
    slots = USES if command == "eval" else SLOTS
    assert {f"--{name.replace('_', '-')}" for name in RunOptions.model_fields} | {f"--{slot}" for slot in slots} <= set(offered)
    shown = subprocess.run(
        [sys.executable, "-m", "asyncrl", command, "--help"], capture_output=True, text=True, timeout=120
    ).stdout
    assert [flag for flag in offered if flag not in shown and flag != "--help"] == []
    assert len(offered) == len(set(offered))


@pytest.mark.parametrize(
    "words", [["train", "--buffer", ""], ["train", "--st"], ["simulate", "--"], ["plugins", "info", ""]], ids=" ".join
)
def test_completion_imports_no_plugin_and_nothing_heavy(words: list[str], tmp_path: Path) -> None:
    """Field reports 28 and 32."""
    install(
        tmp_path, "broken", {"asyncrl.buffers": {"broken": "broken_module:C"}}, modules={"broken_module": "raise RuntimeError"}
    )
    code = f"import sys; from asyncrl.cli.main import main; main(['complete', *{words!r}]); print('MODULES', *sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment)
    offered, _, modules = done.stdout.partition("MODULES")
    assert offered and not done.stderr
    assert ("broken" in offered.split()) == (words[-1] == "")
    targets = {found.target.partition(":")[0] for found in discover().plugins}
    assert not set(modules.split()) & {"torch", "ray", "transformers", "wandb", "numpy", "broken_module", *targets}


def test_it_is_never_an_error(site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], [""], ["--help"], ["train", "=", "--="], ["plugins", "info", "--", "x"], ["train", "--buffer", "--", ""]):
        assert main(["complete", *words]) == 0
    assert capsys.readouterr().err == ""


@pytest.fixture
def command(tmp_path: Path) -> Path:
    """A folder with the command `asyncrl` of this environment."""
    file = tmp_path / "bin" / "asyncrl"
    file.parent.mkdir()
    file.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m asyncrl "$@"\n')
    file.chmod(0o755)
    return file.parent


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("line", "replies"),
    [
        ("asyncrl plug", ["plugins"]),
        ("asyncrl train run.toml --buffer ", ["fifo", "priority"]),
        ("asyncrl train --buffer pri --steps 3", []),
        ("asyncrl train --buffer=pri", ["priority"]),
        ("asyncrl train --buffer=", ["fifo", "priority"]),
        ("asyncrl plugins info buffer:f", ["fifo"]),
        ("asyncrl train --loggers console,js", ["console,jsonl"]),
        ("asyncrl train ", []),
    ],
)
def test_the_script_fills_in_what_bash_wants(line: str, replies: list[str], command: Path) -> None:
    """Bash breaks words at = and : too, so there a reply is what follows them."""
    code = f"""
        eval "$(asyncrl completion bash)"
        complete -p asyncrl
        COMP_WORDBREAKS=$'{BREAKS}' COMP_LINE={line!r} COMP_POINT={len(line)}
        _asyncrl
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    environment = {**os.environ, "PATH": f"{command}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-u", "-c", code], capture_output=True, text=True, timeout=120, env=environment)
    first, *shown = done.stdout.splitlines()
    assert (first, done.stderr) == ("complete -o default -F _asyncrl asyncrl", "")
    assert [reply for reply in shown if reply] == replies


@pytest.mark.parametrize("shell", SHELLS)
def test_every_script_is_read_by_its_shell(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    done = subprocess.run([shell, "-n", "-c", SCRIPTS[shell]], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_shell_has_its_script_and_another_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for shell in SHELLS:
        assert main(["completion", shell]) == 0
        assert capsys.readouterr().out == SCRIPTS[shell]
    assert main(["completion", "tcsh"]) == 2
    assert "invalid choice: 'tcsh' (choose from 'bash', 'zsh', 'fish')" in capsys.readouterr().err

"""The `asyncrl` command as a user runs it: exit codes, what it imports, what it prints."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from asyncrl import __version__
from asyncrl.cli.main import main
from asyncrl.options import resolve
from asyncrl.plugins import SLOTS, discover
from fake_distributions import install, install_toys

ROOT = Path(__file__).resolve().parents[2]
LONG = "x" * 5000


def asyncrl(*arguments: str, path: Path | None = None, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(path or ""), str(ROOT / "tests/support")]), "COLUMNS": "100"}
    command = [sys.executable, "-m", "asyncrl", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, cwd=cwd)


def imported_by(arguments: list[str], path: Path) -> set[str]:
    """Modules that one command imports, in a process of its own."""
    code = (
        "import sys; from asyncrl.cli.main import main\n"
        f"try: main({arguments!r})\nexcept SystemExit: pass\n"
        "print('\\nMODULES', *sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(path), str(ROOT / "tests/support")])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment)
    return set(done.stdout.rsplit("MODULES", 1)[1].split())


@pytest.mark.parametrize(
    "arguments", [["--help"], ["plugins", "list"], ["plugins", "list", "--json"], ["train", "--help"]], ids=" ".join
)
def test_help_and_listing_import_no_plugin_and_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    """Field reports 28 and 32: neither a broken plugin nor a slow one is noticed."""
    install(
        tmp_path, "broken", {"asyncrl.buffers": {"broken": "broken_module:C"}}, modules={"broken_module": "raise RuntimeError"}
    )
    modules = imported_by(arguments, tmp_path)
    targets = {found.target.partition(":")[0] for found in discover().plugins}
    assert not modules & {"torch", "ray", "transformers", "numpy", "rich", "broken_module", *targets}
    if "plugins" in arguments or arguments == ["--help"]:
        assert "pydantic" not in modules


def test_a_chosen_plugin_is_the_only_one_that_help_imports(tmp_path: Path) -> None:
    modules = imported_by(["train", "--loggers", "console", "--help"], tmp_path)
    assert "asyncrl_console" in modules
    assert not modules & {"asyncrl_fifo", "asyncrl_torch", "asyncrl_fsdp", "torch", "ray"}


def test_version_and_module_are_the_command() -> None:
    done = asyncrl("--version")
    assert (done.stdout, done.returncode) == (f"asyncrl {__version__}\n", 0)


def test_help_shows_core_and_the_chosen_plugins_with_type_bounds_default_and_help() -> None:
    done = asyncrl("train", "--buffer", "fifo", "--help")
    assert done.returncode == 0, done.stderr
    assert re.search(r"--steps  integer >= 1; default 100\n +Training steps", done.stdout)
    assert re.search(r"--buffer\.capacity-factor  number >= 1\.0; default 2\.0\n +Capacity", done.stdout)
    assert "--trainer." not in done.stdout
    for slot in SLOTS:
        assert re.search(rf"--{slot} NAME", done.stdout)


def test_help_shows_the_plugins_that_the_file_names(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('steps = "wrong"\n[loggers.console]\n')
    done = asyncrl("train", "run.toml", "--help", cwd=tmp_path)
    assert "--loggers.console.style  one of auto, live, plain; default auto" in done.stdout
    assert done.returncode == 0


def test_plugins_list_shows_every_plugin_with_its_distribution(tmp_path: Path) -> None:
    install(tmp_path, "third-party", {"asyncrl.buffers": {"newest": "newest:C"}}, version="3.1")
    rows = [line.split(maxsplit=4) for line in asyncrl("plugins", "list", path=tmp_path).stdout.splitlines()]
    assert ["buffer", "newest", "third-party", "3.1", "What third-party does."] in rows
    assert any(row[:3] == ["buffer", "fifo", "*"] for row in rows)
    listed = json.loads(asyncrl("plugins", "list", "--json", path=tmp_path).stdout)
    assert {
        "slot": "buffer",
        "name": "newest",
        "distribution": "third-party",
        "version": "3.1",
        "target": "newest:C",
        "summary": "What third-party does.",
        "default": False,
    } in listed
    assert len(listed) == len({(one["slot"], one["name"], one["distribution"]) for one in listed})


def test_plugins_info_shows_what_a_plugin_declares(tmp_path: Path) -> None:
    install_toys(tmp_path)
    text = asyncrl("plugins", "info", "toys:jsonl", path=tmp_path).stdout
    assert "loggers plugin jsonl (default): What toys does." in text
    assert "loggers/jsonl/lines  counter in lines, by train_step" in text
    assert re.search(r"log_metrics\n +Many; controller\.", text)
    text = asyncrl("plugins", "info", "toys:fsdp", path=tmp_path).stdout
    assert "--trainer.limit  integer or none >= 1; default none" in text
    assert "--trainer.compile, --no-trainer.compile  true or false; default false" in text


def test_plugins_info_shows_every_plugin_that_a_name_may_mean(tmp_path: Path) -> None:
    """`jsonl` lives in two slots, and here in two distributions besides."""
    install(tmp_path, "third-party", {"asyncrl.buffers": {"console": "toy_plugins:ToyBuffer"}})
    text = asyncrl("plugins", "info", "console", path=tmp_path).stdout
    assert re.findall(r"^(\w+) plugin console", text, re.MULTILINE) == ["buffer", "loggers"]
    text = asyncrl("plugins", "info", "loggers:console", path=tmp_path).stdout
    assert re.findall(r"^(\w+) plugin console", text, re.MULTILINE) == ["loggers"]


def test_a_name_of_two_distributions_is_shown_as_ambiguous_with_how_to_pick_one(tmp_path: Path) -> None:
    """Field report 31."""
    for name in ("dist-one", "dist-two"):
        entries = {"asyncrl.buffers": {"twice": "toy_plugins:ToyBuffer"}, "asyncrl.loggers": {"twice": "toy_plugins:ToyLogger"}}
        install(tmp_path, name, entries)
    warning = "buffer plugin 'twice' is offered by dist-one 1.0 and dist-two 1.0"
    text = asyncrl("plugins", "info", "twice", path=tmp_path).stdout
    assert (
        f'selected by --buffer dist-one:twice, or [buffer] name = "dist-one:twice" in the file\n  not by its name alone: {warning}\n'
        in text
    )
    assert 'selected by --loggers dist-two:twice, or [loggers."dist-two:twice"] in the file\n' in text
    assert "--buffer twice" not in text
    text = asyncrl("plugins", "info", "dist-two:twice", path=tmp_path).stdout
    assert text.count(" plugin twice") == 2 and text.count("not by its name alone") == 2
    assert f"! {warning} (write dist-one:twice or dist-two:twice)\n" in asyncrl("plugins", "list", path=tmp_path).stdout


@pytest.mark.parametrize("summary", ["Summary:\n", "Summary: UNKNOWN\n", ""])
def test_a_distribution_without_a_description_leaves_nothing_dangling(summary: str, tmp_path: Path) -> None:
    place = install(tmp_path, "terse", {"asyncrl.buffers": {"terse": "toy_plugins:ToyBuffer"}})
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: terse\nVersion: 1.0\n{summary}")
    for arguments in (["plugins", "info", "terse"], ["plugins", "list"], ["train", "--buffer", "terse", "--help"]):
        lines = asyncrl(*arguments, path=tmp_path).stdout.splitlines()
        named = [line for line in lines if "terse" in line and "installed:" not in line]
        assert named and not any(line.endswith((":", " ", "UNKNOWN")) for line in named), named


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["train", "--steps", "ten"], 2, "asyncrl: error: --steps: got 'ten', wants integer >= 1\n"),
        (["train", "missing.toml"], 2, "asyncrl: error: missing.toml: there is no such file"),
        (
            ["plugins", "info", "fif"],
            2,
            "asyncrl: error: asyncrl plugins info: no plugin 'fif' is installed; did you mean 'fifo'?",
        ),
        (["plugins"], 2, "asyncrl: error: asyncrl plugins: the following arguments are required: command"),
        (["tran"], 2, "asyncrl: error: asyncrl: argument command: invalid choice: 'tran'"),
        (
            ["plugins", "info", "broken"],
            3,
            "asyncrl: error: buffer plugin 'broken' (broken 1.0, no_such_module:C) can't be loaded",
        ),
    ],
    ids=str,
)
def test_an_error_is_one_line_on_stderr_and_an_exit_code(arguments: list[str], code: int, text: str, tmp_path: Path) -> None:
    install(tmp_path, "broken", {"asyncrl.buffers": {"broken": "no_such_module:C"}})
    done = asyncrl(*arguments, path=tmp_path, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(text)
    assert len(done.stderr.splitlines()) == 1 or code == 3
    assert list(tmp_path.glob("runs*")) == []


@pytest.mark.parametrize(
    "arguments",
    [["resume", LONG], ["eval", LONG], ["train", LONG], ["train", "demo.toml", "--runs-dir", LONG]],
    ids=["resume", "eval", "train", "runs-dir"],
)
def test_a_path_that_no_file_can_have_is_one_line(arguments: list[str]) -> None:
    done = asyncrl(*arguments, cwd=ROOT / "examples")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("asyncrl: error: ") and line.endswith(": File name too long")


def test_a_reader_that_leaves_early_costs_no_traceback() -> None:
    command = f"{shlex.quote(sys.executable)} -m asyncrl train --help | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    assert done.stdout.startswith("usage: asyncrl train")


def test_main_returns_130_for_an_interrupt_and_leaves_bugs_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    for raised in (KeyboardInterrupt, ZeroDivisionError):

        def run(arguments: list[str], raised: type[BaseException] = raised) -> int:
            raise raised

        monkeypatch.setattr("asyncrl.cli.plugins.run", run)
        if raised is KeyboardInterrupt:
            assert main(["plugins"]) == 130
        else:
            with pytest.raises(ZeroDivisionError):
                main(["plugins"])


@pytest.mark.parametrize("file", sorted((ROOT / "examples").glob("*.toml")), ids=lambda file: file.name)
def test_every_example_resolves_and_is_the_same_when_written_again(file: Path, tmp_path: Path) -> None:
    """Field report 40. A recipe for one's own data is told where they are."""
    own_data = tomllib.loads(file.read_text()).get("task", {}).get("name") == "jsonl"
    config = resolve(file, ["--task.path", "train.jsonl"] if own_data else [])
    again = tmp_path / "config.toml"
    again.write_text(config.to_toml())
    assert tomllib.loads(again.read_text())["steps"] == config.core.steps
    assert resolve(again, []).specs == config.specs
    assert config.notes == ()

"""What the pages say is so: links lead somewhere, commands run, flags and metrics exist, the reference is what the code declares."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from asyncrl import hookspecs
from asyncrl.cli import plugins
from asyncrl.cli.eval import USES
from asyncrl.cli.main import main
from asyncrl.errors import AsyncrlError
from asyncrl.flags import scan
from asyncrl.options import SWITCHES, resolve, resolve_line
from asyncrl.plugins import discover, load
from asyncrl.runtime.directory import RunDirectory
from asyncrl.runtime.reporter import declared_metrics
from asyncrl.runtime.summary import Totals
from packaging.requirements import Requirement
from papers import (
    PAPERS,
    ROOT,
    Block,
    Command,
    anchors,
    blocks,
    commands,
    inline_code,
    install_documented_plugins,
    links,
    relative,
)

BLOCKS = [block for paper in PAPERS for block in blocks(paper)]
EXECUTED = {"docs/plugins/first-plugin.md", "docs/plugins/publish.md", "docs/plugins/eval.md"}
"""Pages whose commands another test runs as they stand (tests/e2e/test_first_plugin.py, test_eval_plugin.py)."""
COMMANDS = [command for paper in PAPERS for command in commands(paper) if relative(paper) not in EXECUTED]
REFERENCE = ROOT / "docs/reference"
HOOKS = sorted(name for name, spec in vars(hookspecs).items() if hasattr(spec, "asyncrl_spec"))


# Links --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("paper", PAPERS, ids=relative)
def test_links_lead_to_files_and_headings_that_exist(paper: Path) -> None:
    """Addresses outside are only looked at: there is no network here."""
    for target, anchor in links(paper):
        if "://" in target:
            address = urlsplit(target)
            assert address.scheme == "https" and "." in address.netloc, target
            continue
        file = (paper.parent / target).resolve() if target else paper
        assert file.exists(), f"{target} does not exist"
        assert file.is_relative_to(ROOT), f"{target} is outside of the repository"
        assert not anchor or anchor in anchors(file), f"{target}#{anchor}: there is no such heading"


def test_every_page_of_the_docs_can_be_reached_from_the_index() -> None:
    reached, todo = set(), [ROOT / "docs/index.md"]
    while todo:
        page = todo.pop()
        if page not in reached:
            reached.add(page)
            todo += [
                (page.parent / target).resolve() for target, _ in links(page) if target.endswith(".md") and "://" not in target
            ]
    assert {page for page in PAPERS if page.is_relative_to(ROOT / "docs")} <= reached


# Blocks -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "toml"], ids=str)
def test_toml_is_toml(block: Block) -> None:
    assert tomllib.loads(block.text)


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "json"], ids=str)
def test_json_is_json(block: Block) -> None:
    for line in block.text.splitlines():
        assert json.loads(line)


SNIPPETS = [
    block
    for block in BLOCKS
    if block.language == "python" and not relative(block.paper).startswith("docs/reference/") and "import " in block.text
]


@pytest.mark.parametrize("block", SNIPPETS, ids=str)
def test_python_runs_as_far_as_it_defines(block: Block) -> None:
    """Field report 40: every name that a snippet imports or derives from exists."""
    exec(compile(block.text, str(block), "exec"), {"__name__": "snippet"})


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "toml"], ids=str)
def test_run_files_have_only_options_that_exist(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Field report 40."""
    if "[project" in block.text:
        pytest.skip("a pyproject.toml")
    install_documented_plugins(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "run.toml"
    file.write_text(block.text)
    assert resolve(file, ["--trainer.old-policy", "engine"]).plugins


# Commands -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """A working directory with the files that a page counts on, and the plugins that the pages show; returns these plugins."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "docs/figures").mkdir(parents=True)
    for name in ("RUN.toml", "run.toml"):
        (tmp_path / name).write_text('steps = 5\n[trainer]\nold_policy = "engine"\n')
    finished = RunDirectory(tmp_path / "runs", "NAME")
    finished.create("steps = 1\n")
    finished.add_trace([(0, [20, 30], [0.4, 0.6], [0.0, 1.0])])
    finished.write_summary(Totals(steps=1, step_seconds=0.6, wait=0.2, train=0.4).summary("completed", 1.0, ""))
    names = install_documented_plugins(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.chdir(tmp_path)
    return names


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_every_documented_command_is_accepted(command: Command, reader: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Field report 40. Of a training command, the file and the flags; a simulation is run for two steps; what starts or installs
    something is looked at by the rules of its program; the rest runs as it stands."""
    program, *arguments = shlex.split(command.text)
    CHECKS[Path(program).name](arguments, reader)
    assert capsys.readouterr().err == ""


def check_asyncrl(arguments: list[str], documented: set[str]) -> None:
    verb, *rest = arguments
    if verb == "train" and "--help" not in rest:
        assert resolve(None, rest).plugins
    elif verb == "eval" and "--help" not in rest:
        line = scan([argument for argument in rest if argument != "--json"], SWITCHES)
        assert resolve_line(replace(line, positionals=line.positionals[1:]), slots=USES).plugins
    elif verb == "resume" and "--help" not in rest:
        line = scan(rest, SWITCHES)
        flags = tuple(flag for flag in line.flags if flag.name != "from")
        assert resolve_line(replace(line, flags=flags, positionals=(f"{line.positionals[0]}/config.toml",))).plugins
    elif verb == "simulate" and "--help" not in rest:
        assert main([verb, *rest, "--simulate.steps", "2"]) == 0
    elif verb == "plugins" and rest[0] in ("check", "test"):  # tests/cli/ runs them
        plugins._parser().parse_args(rest)
    else:
        assert main(arguments) == 0


def check_python(arguments: list[str], documented: set[str]) -> None:
    if arguments[:2] == ["-m", "pip"]:
        check_pip(arguments[2:], documented)
    elif arguments[0] == "-m":
        shown = subprocess.run(
            [sys.executable, *arguments[:2], "--help"], capture_output=True, text=True, timeout=120, check=True
        )
        assert {flag for flag in arguments if flag.startswith("--")} <= set(re.findall(r"--[\w-]+", shown.stdout))
    else:
        assert (ROOT / arguments[0]).is_file()


def check_pip(arguments: list[str], documented: set[str]) -> None:
    """Everything that is installed is a distribution of this repository, or one that a page shows how to make."""
    assert arguments[0] == "install"
    extras = {
        project["name"]: set(project.get("optional-dependencies", {}))
        for file in [ROOT / "pyproject.toml", *ROOT.glob("*/pyproject.toml"), *ROOT.glob("plugins/*/*/pyproject.toml")]
        for project in [tomllib.loads(file.read_text())["project"]]
    }
    for argument in arguments[1:]:
        if argument.startswith("./"):
            assert Path(argument).name in documented
        elif not argument.startswith("-"):
            wanted = Requirement(argument)
            assert wanted.name in documented | extras.keys(), argument
            assert wanted.extras <= extras.get(wanted.name, set()), argument


def check_make(arguments: list[str], documented: set[str]) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(arguments) <= targets


def check_script(arguments: list[str], documented: set[str]) -> None:
    """A program of one of our dependencies."""
    assert metadata.entry_points(group="console_scripts", name="tensorboard")


CHECKS: dict[str, Callable[[list[str], set[str]], None]] = {
    "asyncrl": check_asyncrl,
    "python": check_python,
    "pip": check_pip,
    "make": check_make,
    "tensorboard": check_script,
}


# Names in the text ----------------------------------------------------------------------------------------------------------


def test_flags_in_the_text_exist() -> None:
    """Field report 40."""
    known = set(re.findall(r"--[a-z][\w.-]*", (REFERENCE / "commands.md").read_text()))
    for server in ROOT.glob("plugins/*/*/*/server.py"):
        known |= set(re.findall(r'"(--[a-z][\w-]*)"', server.read_text()))
    for found in discover().plugins:
        for option in load(found).Options.model_fields:
            known.add(f"--{found.slot}.{option.replace('_', '-')}")
            known.add(f"--{found.slot}.{found.name}.{option.replace('_', '-')}")
            if found.slot == "engine":  # what evaluations override
                known.add(f"--eval.engine.{option.replace('_', '-')}")
    for paper in PAPERS:
        for code in inline_code(paper):
            if code.startswith(("--", "asyncrl ")):
                flags = {flag for flag in re.findall(r"(?<!\S)--[a-z][\w.-]*", code) if flag == flag.lower()}
                assert flags <= known, f"{relative(paper)}: `{code}`"


def test_metrics_in_the_text_are_declared() -> None:
    """Field report 40."""
    kinds = [load(found) for found in discover().plugins]
    declared = {metric.name: bool(metric.label) for metric in declared_metrics(kinds)}
    roots = {name.split("/")[0] for name in declared} - {"buffer", "eval", "plugins"} | {"eval/reward", "buffer/priority"}
    for paper in PAPERS:
        for code in inline_code(paper):
            if re.fullmatch(rf"(?:{'|'.join(roots)})(?:/[\w<>-]+)+", code) and not (paper.parent / code).exists():
                name = re.sub(r"/(mean|min|max)$", "", code)
                labelled = declared.get(name.rpartition("/")[0], False)
                assert name in declared or labelled, f"{relative(paper)}: `{code}`"


# Reference ------------------------------------------------------------------------------------------------------------------


def test_the_generated_pages_are_current() -> None:
    """Field report 40."""
    done = subprocess.run([sys.executable, ROOT / "docs/generate.py", "--check"], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_is_documented_and_some_test_uses_it(hook: str) -> None:
    assert f"### `{hook}`" in (REFERENCE / "hooks.md").read_text()
    tests = [*ROOT.glob("tests/**/*.py"), *ROOT.glob("plugins/*/*/tests/**/*.py")]
    assert any(re.search(rf"\b{hook}\b", test.read_text()) for test in tests if test != Path(__file__))


@pytest.mark.parametrize("process", hookspecs.CALLED_IN)
def test_the_contract_of_a_hook_names_the_processes_that_call_it(process: str) -> None:
    for hook in hookspecs.CALLED_IN[process]:
        where = (getattr(hookspecs, hook).__doc__ or "").partition(". ")[0].lower()
        assert process in where, f"{hook}: {where}"


def test_every_exception_is_documented() -> None:
    text = (REFERENCE / "errors.md").read_text()
    kinds = [AsyncrlError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    assert all(re.search(rf"\b{kind.__name__}\b", text) for kind in kinds if kind.__module__ == "asyncrl.errors")

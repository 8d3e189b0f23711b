"""`asyncrl plugins new`: for each slot a distribution that works as it stands, and one line for each mistake: `golden/plugins_new.txt`.

UPDATE_GOLDEN=1 pytest tests/cli/test_plugins_new.py      write the golden file again
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import ModuleType

import asyncrl
import asyncrl.testing
import pytest
from asyncrl.cli.main import main
from asyncrl.cli.new import SKETCHES, contents, write
from asyncrl.cli.test import read_attributes
from asyncrl.errors import AsyncrlError
from asyncrl.hookspecs import HOOK_API
from asyncrl.options import resolve
from asyncrl.plugins import SLOTS, discover, load
from fake_distributions import install, install_toys

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).parent / "golden" / "plugins_new.txt"
MISTAKES = """
buffers mine
observer mine
mine buffer
buffer Mine
buffer my_buffer
buffer MyBuffer2
buffer 2fast
buffer dist:mine
buffer Über
buffer été-x
buffer größe
buffer буфер
buffer -- -
buffer fifo
filters taken
buffer here
buffer mine --path file
buffer mine --path=
buffer
""".strip().splitlines()


def install_source(source: Path, site: Path) -> None:
    """Install a generated distribution as pip would, but in no time: its module, and the metadata that its pyproject.toml asks for."""
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    (module,) = source.glob("*.py")
    modules = {module.stem: module.read_text()}
    install(site, project["name"], project["entry-points"], version=project["version"], modules=modules)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A new plugin for every slot, called my-SLOT."""
    folder = tmp_path_factory.mktemp("new")
    return {slot: write(slot, f"my-{slot}", folder, discover()) for slot in SLOTS}


@pytest.fixture(scope="module")
def site(sources: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which all of them are installed."""
    folder = tmp_path_factory.mktemp("site")
    for source in sources.values():
        install_source(source, folder)
    return folder


@pytest.fixture(scope="module")
def outcomes(sources: dict[str, Path], site: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What the tests of each came to, run as their authors would: {slot: a line a test that was not passed, or "passed"}."""
    report = tmp_path_factory.mktemp("report") / "junit.xml"
    folders = [str(source / "tests") for source in sources.values()]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junit-xml={report}", *folders]
    environment = {**os.environ, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    cwd = next(iter(sources.values())).parent
    done = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=900)
    assert report.exists(), done.stdout + done.stderr
    found: dict[str, list[str]] = {slot: [] for slot in SLOTS}
    for case in ElementTree.parse(report).iter("testcase"):
        (slot,) = [slot for slot in SLOTS if f"test_my_{slot}." in f"{case.get('classname')}."]
        faults = [f"{case.get('name')}: {each.tag}: {each.text}" for each in case if each.tag in ("failure", "error")]
        found[slot] += faults or (["passed"] if case.find("skipped") is None else [])
    return found


@pytest.mark.minutes
@pytest.mark.timeout(1000)  # the first one runs them all
@pytest.mark.parametrize("slot", SLOTS)
def test_a_new_plugin_passes_its_own_tests(slot: str, outcomes: dict[str, list[str]]) -> None:
    assert [line for line in outcomes[slot] if line != "passed"] == []
    assert len(outcomes[slot]) >= 12


def test_every_slot_has_a_template_for_the_current_hooks_with_options_and_a_metric(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(SKETCHES) == set(SLOTS)
    monkeypatch.syspath_prepend(site)
    for found in discover([str(site)]).plugins:
        kind = load(found)
        assert kind.hook_api == HOOK_API and "hook_api" in vars(kind.__mro__[1]), found
        assert kind.Options.model_fields and kind.Metrics.declared(""), found
        assert found.summary.endswith(".") and found.summary[0].isupper(), found


@pytest.mark.parametrize("module", [asyncrl, asyncrl.testing], ids=lambda module: module.__name__)
def test_a_type_checker_sees_every_public_name(module: ModuleType) -> None:
    """It takes a class that it does not see for Any, and refuses to have plugins derived from it."""
    tree = ast.parse(Path(str(module.__file__)).read_text())
    seen = {alias.asname for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert set(module.__all__) - {"__version__", "SUITES"} == seen - {None}


@pytest.mark.parametrize("slot", SLOTS)
def test_the_commands_of_its_readme_are_accepted(
    slot: str, sources: dict[str, Path], site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Field report 40."""
    monkeypatch.syspath_prepend(site)
    commands = re.findall(r"^asyncrl (.+?)(?: +#.*)?$", (sources[slot] / "README.md").read_text(), re.MULTILINE)
    (training,) = [shlex.split(command) for command in commands if command.startswith("train RUN.toml ")]
    config = resolve(None, training[2:])
    assert f"my-{slot}" in [plugin.found.name for plugin in config.plugins]
    (info,) = [shlex.split(command) for command in commands if command.startswith("plugins info")]
    assert main(info) == 0
    assert f"{slot} plugin my-{slot}: " in capsys.readouterr().out
    (test,) = [shlex.split(command) for command in commands if command.startswith("plugins test")]
    assert test[2] == f"{slot}:my-{slot}"
    declared = read_attributes(discover().pick(slot, f"my-{slot}", ""), [word for word in test[3:] if word != "--declare"])
    assert declared == promised(sources[slot] / "tests" / f"test_my_{slot}.py")


def promised(test: Path) -> dict[str, object]:
    """What the suite class of a plugin's test promises in plain values."""
    (suite,) = [node for node in ast.parse(test.read_text()).body if isinstance(node, ast.ClassDef)]
    pairs = [(node.targets[0], node.value) for node in suite.body if isinstance(node, ast.Assign)]
    named = {key.id: value.value for key, value in pairs if isinstance(key, ast.Name) and isinstance(value, ast.Constant)}
    return {name: value for name, value in named.items() if name != "plugin"}


@pytest.mark.parametrize("name", ["x", "an-extraordinarily-long-name-of-a-plugin-42"])
def test_what_it_writes_is_linted_and_formatted(name: str, tmp_path: Path) -> None:
    for slot in SLOTS:
        for file, text in contents(slot, name).items():
            path = tmp_path / slot / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            assert not re.search("template|@\\w+@", text, re.IGNORECASE), (slot, file)
    for command in (["check"], ["format", "--check"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--no-cache", "--config", str(ROOT / "pyproject.toml"), str(tmp_path)]
        done = subprocess.run(ruff, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout


def test_pip_installs_it_and_it_is_found_by_its_name(sources: dict[str, Path], tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    done = subprocess.run([*pip, "--target", str(tmp_path), str(sources["buffer"])], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    (found,) = discover([str(tmp_path)]).plugins
    assert (found.slot, found.name, found.distribution) == ("buffer", "my-buffer", "asyncrl-plugin-my-buffer")
    assert found.target == "asyncrl_my_buffer:MyBuffer"
    assert (tmp_path / "asyncrl_my_buffer.py").exists()


def test_it_says_what_it_wrote_and_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plugins", "new", "scheduler", "calm", "--path", "a/b"]) == 0
    out = capsys.readouterr().out
    folder = Path("a/b/asyncrl-plugin-calm")
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert files == ["README.md", "asyncrl_calm.py", "pyproject.toml", "tests/test_calm.py"]
    assert all(f"  {file}\n" in out for file in files)
    assert f"  cd {folder}\n  pip install --editable '.[test]'\n  pytest\n  asyncrl train RUN.toml --scheduler calm\n" in out


def test_a_taken_name_can_be_forced_and_an_existing_folder_can_not(tmp_path: Path) -> None:
    first = write("buffer", "fifo", tmp_path, discover(), force=True)
    before = {path: path.read_text() for path in first.rglob("*.*")}
    with pytest.raises(AsyncrlError, match="exists already"):
        write("scheduler", "fifo", tmp_path, discover(), force=True)
    assert {path: path.read_text() for path in first.rglob("*.*")} == before


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, int]]:
    """What each mistake is answered with: {as written: (stderr, exit code)}."""
    folder = tmp_path_factory.mktemp("mistakes")
    install_toys(folder / "installed")
    install(folder / "installed", "asyncrl-plugin-taken", {"asyncrl.buffers": {"other": "m:C"}})
    (folder / "asyncrl-plugin-here").mkdir()
    (folder / "file").write_text("")
    code = (
        "import sys; from asyncrl import plugins; found = plugins.discover([sys.argv[1]])\n"
        "from asyncrl.cli import main, new; new.discover = lambda: found\n"
        "for line in sys.stdin.read().splitlines():\n"
        "    code = main.main(['plugins', 'new', *line.split()])\n"
        "    print(code, file=sys.stderr)"
    )
    command = [sys.executable, "-c", code, str(folder / "installed")]
    done = subprocess.run(command, input="\n".join(MISTAKES), capture_output=True, text=True, timeout=120, cwd=folder)
    lines = iter(done.stderr.splitlines())
    assert sorted(path.name for path in folder.iterdir()) == ["asyncrl-plugin-here", "file", "installed"], "nothing was written"
    return {mistake: (next(lines), int(next(lines))) for mistake in MISTAKES}


def test_every_mistake_is_answered_by_one_line_and_exit_code_2(answers: dict[str, tuple[str, int]]) -> None:
    for mistake, (text, code) in answers.items():
        assert (text.startswith("asyncrl: error: asyncrl plugins new"), code) == (True, 2), mistake


def test_the_answers_are_those_of_the_golden_file(answers: dict[str, tuple[str, int]]) -> None:
    text = "".join(f"asyncrl plugins new {mistake}\n    {answer}\n" for mistake, (answer, _) in answers.items())
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


@pytest.mark.parametrize("name", ["state", "metric-set", "field", "none", "true"])
def test_a_name_that_the_code_uses_itself_hides_nothing(name: str) -> None:
    [code] = [text for file, text in contents("buffer", name).items() if file.startswith("asyncrl_") and file.endswith(".py")]
    class_name = "".join(word.capitalize() for word in name.split("-"))
    assert f"class {class_name}Buffer(" in code and f"class {class_name}(" not in code
    compile(code, name, "exec")

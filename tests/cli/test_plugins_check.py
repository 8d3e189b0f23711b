"""`asyncrl plugins check`: what is broken, incompatible, offered twice, stale or stray, each for what it is: `golden/plugins_check.txt`.

UPDATE_GOLDEN=1 pytest tests/cli/test_plugins_check.py      write the golden file again
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from asyncrl import __version__
from asyncrl.cli.check import KINDS, look_at
from asyncrl.cli.check_metadata import look
from asyncrl.cli.main import main
from asyncrl.plugins import Found, discover
from fake_distributions import install

GOLDEN = Path(__file__).parent / "golden" / "plugins_check.txt"
OBSERVER = """
from asyncrl import Plugin, hookimpl
class Fine(Plugin):
    @hookimpl
    def on_run_end(self): pass
"""
MODULES = {
    "fine": OBSERVER,
    "raises": "raise RuntimeError('no luck')",
    "exits": "import sys; sys.exit(7)",
    "dies": "import os; os.write(1, b'{}'); os._exit(7)",
    "leaves": "import os; os._exit(0)",
    "makes_and_leaves": OBSERVER + "    def __init__(self, options, run): import os; os._exit(0)",
    "makes_and_exits": OBSERVER + "    def __init__(self, options, run): raise SystemExit",
    "killed": "import os; os.kill(os.getpid(), 9)",
    "no_class": "",
    "no_plugin": "class Fine: pass",
    "wrong_hook": OBSERVER.replace("(self)", "(self, why)"),
    "other_api": OBSERVER.replace("Fine(Plugin):", "Fine(Plugin):\n    hook_api = 99"),
    "baseless": OBSERVER + "    def __init__(self, options, run): pass",
    "misspelled": OBSERVER + "    def on_stpe(self): pass",
    "prints": "print('hello')\n" + OBSERVER,
    "lingers": "import threading, time; threading.Thread(target=time.sleep, args=(600,)).start()\n" + OBSERVER,
}
"""An observer each, under the module's name. The last two are fine."""


def project(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "pyproject.toml").write_text(text)
    return folder


def from_folder(place: Path, source: Path, *, editable: bool) -> None:
    """Have the metadata say that it was installed from there."""
    (place / "direct_url.json").write_text(json.dumps({"url": source.as_uri(), "dir_info": {"editable": editable}}))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment in which everything has gone wrong that can."""
    top = tmp_path_factory.mktemp("installed")
    folder = top / "site"
    folder.mkdir()
    for module, source in MODULES.items():
        install(folder, f"dist-{module}", {"asyncrl.observers": {module: f"{module}:Fine"}}, modules={module: source})

    def observer(name: str, **more: Any) -> Path:
        return install(folder, name, {"asyncrl.observers": {name.removeprefix("dist-"): "fine:Fine"}}, **more)

    needs = observer("dist-needs")
    (needs / "METADATA").write_text((needs / "METADATA").read_text() + "Requires-Dist: asyncrl-core>=99\n")
    unread = observer("dist-unread")
    (unread / "METADATA").write_text((unread / "METADATA").read_text() + "Requires-Dist: asyncrl-core >>> 1\n")
    (observer("dist-nameless") / "METADATA").write_text("Metadata-Version: 2.1\n")
    for name in ("dist-one", "dist-two"):
        install(folder, name, {"asyncrl.observers": {"twice": "fine:Fine"}})
    install(folder, "dist-stray", {"asyncrl.observer": {"lost": "fine:Fine"}})
    (install(folder, "dist-mangled", {}) / "entry_points.txt").write_bytes(b"[asyncrl.observers]\n\xff\xfe")

    changed = (
        '[project]\nname = "dist-changed"\nversion = "2.0"\n[project.entry-points."asyncrl.observers"]\nnewer = "fine:Fine"\n'
    )
    from_folder(observer("dist-changed"), project(top / "changed", changed), editable=True)
    moved = (
        '[project]\nname = "dist-moved"\nversion = "1.0"\n[project.entry-points."asyncrl.observers"]\nmoved = "elsewhere:Fine"\n'
    )
    from_folder(observer("dist-moved"), project(top / "moved", moved), editable=True)
    from_folder(observer("dist-gone"), top / "gone", editable=True)
    copied = (
        '[project]\nname = "dist-copied"\nversion = "1.0"\n[project.entry-points."asyncrl.observers"]\ncopied = "fine:Fine"\n'
    )
    place = observer("dist-copied")
    from_folder(place, project(top / "copied", copied), editable=False)
    (place / "RECORD").write_text("fine.py,,\n")
    (top / "copied" / "fine.py").write_text(OBSERVER + "# and more\n")
    other_words = (
        '[project]\nname = "dist-words"\nversion = "1.0"\ndescription = "What it does now."\nrequires-python = ">=3.12"\n'
        'dependencies = ["numpy>=2"]\n[project.entry-points."asyncrl.observers"]\nwords = "fine:Fine"\n'
    )
    words = observer("dist-words")
    needs_more = "Requires-Python: >=3.11\nRequires-Dist: asyncrl-core\nRequires-Dist: pytest; extra == 'test'\n"
    (words / "METADATA").write_text((words / "METADATA").read_text() + needs_more)
    from_folder(words, project(top / "words", other_words), editable=True)
    numberless = '[project]\nname = "dist-numberless"\nversion = "one"\ndescription = "What dist-numberless does."\n'
    numberless += '[project.entry-points."asyncrl.observers"]\nnumberless = "fine:Fine"\n'
    from_folder(observer("dist-numberless"), project(top / "numberless", numberless), editable=True)
    from_folder(observer("dist-garbled"), project(top / "garbled", "[project\n"), editable=True)
    renamed = '[project]\nname = "dist-new-name"\nversion = "1.0"\ndescription = "What dist-old-name does."\n'
    renamed += '[project.entry-points."asyncrl.observers"]\nold-name = "fine:Fine"\n'
    from_folder(observer("dist-old-name"), project(top / "renamed", renamed), editable=True)
    same = '[project]\nname = "Dist_Same"\nversion = "1.0.0"\ndescription = "What  dist-same does."\n'
    same += '[project.entry-points."asyncrl.observers"]\nsame = "fine: Fine"\n'
    from_folder(observer("dist-same"), project(top / "same", same), editable=True)
    for version in ("1.0", "1.1"):
        observer("dist-left", version=version)
    return folder


def check(*arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(path or "")}
    command = [sys.executable, "-m", "asyncrl", "plugins", "check", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment)


def test_the_projects_own_environment_is_well() -> None:
    """Where this fails after a change of a pyproject.toml, `make setup` was not run again."""
    done = check()
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout.endswith("distributions: all is well\n")


def test_everything_that_can_go_wrong_is_found_and_named(site: Path) -> None:
    """Field reports 28, 29, 31 and 33: each has its line, and none hides another one."""
    names = [f"observers:{found.name}" for found in discover([str(site)]).plugins]
    done = check("--json", *names, path=site)
    assert done.returncode == 3, done.stderr
    document = json.loads(done.stdout)
    assert {one["name"] for one in document["plugins"]} == {name.partition(":")[2] for name in names}
    findings = [*document["findings"], *strays(site)]
    assert {finding["kind"] for finding in findings} == set(KINDS)
    assert all("Traceback" in one["detail"] for one in findings if one["distribution"] in ("dist-raises", "dist-exits"))
    lines = [f"{finding['kind']}: {finding['message']}" for finding in findings]
    text = "\n".join(lines).replace(str(site.parent), "…").replace(f"asyncrl-core {__version__}", "asyncrl-core VERSION") + "\n"
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def strays(site: Path) -> list[dict[str, str]]:
    """They belong to no plugin, so that only a check of everything names them."""
    catalog = discover([str(site)])
    return [{"kind": "stray", "message": stray, "distribution": "", "detail": ""} for stray in catalog.strays]


def test_a_check_of_everything_names_strays(site: Path) -> None:
    catalog = discover([str(site)])
    sys.path.insert(0, str(site))
    try:
        kinds = [kind for kind, _, _ in look(catalog)]
    finally:
        sys.path.remove(str(site))
    assert kinds.count("stray") == 4


def test_a_plugin_that_is_fine_is_exit_code_0_whatever_it_prints_and_starts(site: Path) -> None:
    done = check("fine", "prints", "lingers", "same", path=site)
    assert (done.returncode, done.stdout) == (0, "4 plugins of 4 distributions: all is well\n")


def test_a_doubt_is_told_and_costs_nothing(site: Path) -> None:
    """Field report 33."""
    done = check("misspelled", path=site)
    assert done.returncode == 0
    assert done.stdout.startswith("note: observers plugin 'misspelled' (dist-misspelled 1.0, misspelled:Fine): on_stpe at ")
    assert done.stdout.endswith("1 plugins of 1 distributions: 1 note\n")


def test_an_import_that_does_not_end_is_ended_with_all_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = tmp_path / "child"
    source = (
        "import subprocess, time, pathlib\n"
        f"pathlib.Path({str(child)!r}).write_text(str(subprocess.Popen(['sleep', '600']).pid))\n"
        "time.sleep(600)\n"
    )
    install(tmp_path, "dist-hangs", {"asyncrl.observers": {"hangs": "hangs:Fine"}}, modules={"hangs": source})
    monkeypatch.syspath_prepend(tmp_path)
    found = discover([str(tmp_path)]).pick("observers", "hangs", "")
    timeout = 2.0
    while not child.exists():  # a busy machine may not even have begun
        looked = asyncio.run(look_at(found, timeout))
        timeout *= 2
    (finding,) = looked.findings
    assert finding.kind == "broken"
    assert "importing or making it did not end within" in finding.message
    assert ended(int(child.read_text()))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_import_that_does_not_end_ends_with_the_command(number: int, tmp_path: Path) -> None:
    child = tmp_path / "child"
    source = f"import os, pathlib, time\npathlib.Path({str(child)!r}).write_text(str(os.getpid()))\ntime.sleep(600)\n"
    install(tmp_path, "dist-hangs", {"asyncrl.observers": {"hangs": "hangs:Fine"}}, modules={"hangs": source})
    command = [sys.executable, "-m", "asyncrl", "plugins", "check", "hangs", "--timeout", "500"]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    while not (child.exists() and child.read_text()):
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait() == (128 + signal.SIGTERM if number == signal.SIGTERM else -signal.SIGKILL)
    assert ended(int(child.read_text()))


def ended(pid: int) -> bool:
    """Whether a process is gone, or only waits to be buried."""
    for _ in range(200):
        try:
            if "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text():
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False


def test_an_unknown_name_is_exit_code_2() -> None:
    done = check("fif")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("asyncrl: error: asyncrl plugins check: no plugin 'fif' is installed; did you mean 'fifo'?")


@pytest.mark.parametrize("flags", ["--timeout nan", "--timeout inf", "--timeout 0", "--timeout soon", "--jobs 0", "--jobs 1.5"])
def test_a_limit_that_is_none_is_exit_code_2(flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "check", *flags.split()]) == 2
    assert f"argument {flags.split()[0]}: invalid positive number value" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["", ":fifo", "fifo:", "buffer:"])
def test_half_a_name_is_exit_code_2(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "check", name]) == 2
    assert f"asyncrl plugins check: got {name!r}, wants NAME, SLOT:NAME or DISTRIBUTION:NAME" in capsys.readouterr().err


def test_found_is_what_crosses_to_the_process() -> None:
    """The child rebuilds it from its fields."""
    found = discover().pick("buffer", "fifo", "")
    assert Found(**json.loads(json.dumps(vars(found)))) == found

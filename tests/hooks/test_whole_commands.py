"""What a plugin does wrong, seen by whoever runs the command: exit code, what is said, and what goes on."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from asyncrl.cli.main import main
from asyncrl.plugins import SLOTS
from fake_distributions import install

SMALL = ["simulate", "--steps", "3", "--batch-size", "2", "--group-size", "2", "--json"]
OBSERVER = """
from pathlib import Path
from asyncrl import *
from pydantic import Field
class Good(Plugin):
    class Options(PluginOptions):
        file: Path = Field(description="Where to write.")
    @hookimpl
    def on_group_ended(self, prompt_id, fate):
        with self.options.file.open("a") as file: print(prompt_id, fate, file=file)
class Fails(Plugin):
    @hookimpl
    def on_group_ended(self, prompt_id):
        raise ZeroDivisionError("as ever")
    def on_group_finishd(self, group): pass
"""
BUFFER = """
print("imported")
from asyncrl import *
from asyncrl_fifo import Fifo
class Good(Fifo):
    @hookimpl
    def buffer_take(self, version, due):
        if version == 2: raise ZeroDivisionError("the shelf fell down")
        return super().buffer_take(version, due)
"""
WRAPPER = """
from asyncrl import *
class Good(Plugin):
    @hookimpl(wrapper=True)
    def submission_quota(self):
        return min(1, (yield))
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that is first on the import path; what was imported from it is forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def offer(path: Path, slot: str, source: str, **targets: str) -> None:
    """Install a distribution with one module, named after the folder, and plugins {name: class}."""
    module = f"module_{slot}_{abs(hash(str(path)))}"
    entries = {name: f"{module}:{target}" for name, target in targets.items()}
    install(path, f"dist-{slot}", {SLOTS[slot].group: entries}, modules={module: source})


def test_a_broken_plugin_that_nobody_chose_is_not_noticed(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Field report 28."""
    offer(path, "buffer", "import sys; print('imported'); sys.exit(5)", broken="Good")
    (install(path, "mangled", {}) / "entry_points.txt").write_bytes(b"[asyncrl.buffers]\n\xff\xfe")
    for arguments in (["plugins", "list"], ["train", "--help"], SMALL):
        assert main(arguments) == 0
        shown = capsys.readouterr()
        assert ("imported" in shown.out, shown.err) == (False, "")


def test_what_a_plugin_prints_when_it_is_imported_does_not_mix_with_the_answer(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    offer(path, "buffer", BUFFER.replace("== 2", "== -2"), mine="Good")
    assert main([*SMALL, "--buffer", "mine"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["steps"] == 3
    assert shown.err == "imported\n"


def test_a_slot_that_fails_ends_the_run_with_code_3_and_the_traceback(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    offer(path, "buffer", BUFFER, mine="Good")
    assert main([*SMALL, "--buffer", "mine"]) == 3
    error = capsys.readouterr().err
    assert (
        "error: buffer plugin 'mine' (dist-buffer 1.0) failed in buffer_take: ZeroDivisionError: the shelf fell down\n" in error
    )
    assert "in buffer_take\n" in error


def test_an_observer_that_fails_is_warned_about_once_and_the_others_see_everything(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Field reports 33 and 38: and the hook whose name it misspelled is told too."""
    offer(path, "observers", OBSERVER, fails="Fails", good="Good")
    chosen = ["--observers", "fails,good", "--observers.good.file", str(path / "seen.txt")]
    assert main([*SMALL, *chosen]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["steps"] == 3
    assert len((path / "seen.txt").read_text().splitlines()) == 6
    assert shown.err.count("ZeroDivisionError") == 1
    assert "observers plugin 'fails' (dist-observers 1.0) failed in on_group_ended (said once) at " in shown.err
    assert main(SMALL[:-1] + chosen) == 0
    assert "on_group_finishd at " in (error := capsys.readouterr().err)
    assert "did its author mean 'on_group_finished'?" in error


def test_a_plugin_of_any_slot_may_go_around_a_slot_hook(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    offer(path, "observers", WRAPPER, one_by_one="Good")
    assert main(SMALL) == 0
    before = json.loads(capsys.readouterr().out)
    assert main([*SMALL, "--observers", "one_by_one"]) == 0
    after = json.loads(capsys.readouterr().out)
    assert after["steps"] == before["steps"]


@pytest.mark.parametrize("point", ["no_colon", "module:", "module:Good [extra]", "module:Go od", ":Good", ""])
def test_an_entry_point_that_is_malformed_is_the_plugins_fault(
    point: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Field report 29."""
    install(path, "dist-odd", {"asyncrl.buffers": {"odd": point}}, modules={"module": "Good = 3"})
    assert main([*SMALL, "--buffer", "odd"]) == 3
    assert capsys.readouterr().err.startswith("asyncrl: error: buffer plugin 'odd' (dist-odd 1.0, ")
    assert main(["plugins", "list"]) == 0

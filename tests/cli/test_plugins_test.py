"""`asyncrl plugins test`: the rules of a slot without a line of its author's, and exit codes that say what is wrong with whom."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from asyncrl.cli.main import main
from asyncrl.cli.test import attributes_of, suite_source
from asyncrl.errors import UserError
from asyncrl.plugins import SLOTS, discover
from asyncrl.testing import SUITES
from fake_distributions import install

GOLDEN = Path(__file__).parent / "golden" / "plugins_test.txt"
STALENESS = """
import os
from asyncrl import KEEP, Plugin, PluginOptions, drop, hookimpl
from pydantic import Field
class Options(PluginOptions):
    limit: int = Field(ge=0, description="Greatest age.")
    word: str = Field("old", description="Reason.")
class Limit(Plugin):
    Options = Options
    @hookimpl
    def judge_staleness(self, group, version):
        return KEEP if group.staleness(version) <= self.options.limit else drop(self.options.word)
class Deadly(Limit):
    @hookimpl
    def judge_staleness(self, group, version):
        os.kill(os.getpid(), 9)
"""
VERDICTS = "verdicts or older"
MISTAKES = """
lim
limit
limit --set limt=3
limit --set limit=-1
limit --set limit
limit --set limit=3 --declare boundd=3
limit --set limit=3 --declare bound
limit --set limit=3 --declare bound=soon
limit --set limit=3 --declare imports=torch
fifo --declare order=random
fifo --declare evicts=yes
limit --set limit=3 -k nosuchrule
limit --set limit=3 -k not
several --set limit=3
broken
""".strip().splitlines()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    names = {"limit": "theirs:Limit", "deadly": "theirs:Deadly", "several": "theirs:Limit"}
    install(folder, "theirs", {"asyncrl.staleness": names}, modules={"theirs": STALENESS})
    install(folder, "more", {"asyncrl.filters": {"several": "m:C"}, "asyncrl.buffers": {"broken": "no_such_module:C"}})
    return folder


def plugins_test(site: Path, *arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(site), "PYTEST_ADDOPTS": "", **({"TMPDIR": str(folder)} if folder else {})}
    command = [sys.executable, "-m", "asyncrl", "plugins", "test", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, cwd=site)


def test_a_plugin_that_keeps_the_rules_is_exit_code_0_and_each_rule_is_named(site: Path, tmp_path: Path) -> None:
    done = plugins_test(site, "limit", "--set", "limit=2", "--set", "word=stale", "-k", VERDICTS, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "test_limit.py::TestLimitStaleness::test_older_is_never_better PASSED" in done.stdout
    assert list(tmp_path.glob("asyncrl-suite-*")) == []


def test_a_plugin_that_breaks_a_rule_is_exit_code_1_and_told_how_to_fix_it(site: Path) -> None:
    """It lets groups pass that are 3 versions old, and declares that it keeps a bound of 1."""
    done = plugins_test(site, "theirs:limit", "--set", "limit=3", "--declare", "bound=1", "-k", "keeps_the_bound or never_better")
    assert done.returncode == 1
    assert "test_older_is_never_better PASSED" in done.stdout
    assert "test_a_run_keeps_the_bound FAILED" in done.stdout
    assert "promised: no trained token is more than 1 versions old" in done.stdout
    assert "to fix:" in done.stdout


def test_a_plugin_that_ends_the_process_is_exit_code_3(site: Path) -> None:
    done = plugins_test(site, "deadly", "--set", "limit=2", "-k", VERDICTS)
    assert done.returncode == 3
    assert "ended the process of its tests by signal 9" in done.stderr


SLOW = """
import time
from asyncrl import Plugin, hookimpl
class Slow(Plugin):
    @hookimpl
    def judge_staleness(self, group, version):
        open("begun", "w").close()
        time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_ended_in_the_middle_it_leaves_no_process_and_told_to_end_no_folder_either(number: int, tmp_path: Path) -> None:
    install(tmp_path, "slow", {"asyncrl.staleness": {"slow": "slow:Slow"}}, modules={"slow": SLOW})
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "TMPDIR": str(temporary)}
    command = [sys.executable, "-m", "asyncrl", "plugins", "test", "slow", "-k", "test_its_verdicts_are_verdicts"]
    process = subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    with process:
        while not (tmp_path / "begun").exists():
            time.sleep(0.05)
        process.send_signal(number)
        process.stdout.read()  # ends when the last process that holds it has ended
    assert process.returncode == (128 + signal.SIGTERM if number == signal.SIGTERM else -signal.SIGKILL)
    assert number == signal.SIGKILL or list(temporary.iterdir()) == []


@pytest.mark.parametrize("missing", ["pytest", "hypothesis"])
def test_without_pytest_it_names_the_extra(
    missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    assert main(["plugins", "test", "fifo"]) == UserError.exit_code
    wanted = f"asyncrl: error: asyncrl plugins test: {missing} is not installed (pip install 'asyncrl-core[testing]')\n"
    assert capsys.readouterr().err == wanted


def test_the_mistakes_are_answered_as_in_the_golden_file(
    site: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """`UPDATE_GOLDEN=1` writes it again."""
    monkeypatch.syspath_prepend(site)
    answers = {}
    for mistake in MISTAKES:
        assert main(["plugins", "test", *mistake.split()]) == (3 if mistake.startswith("broken") else 2), mistake
        told = next(line for line in capfd.readouterr().err.splitlines() if line.startswith("asyncrl: "))
        answers[mistake] = re.sub(r"\(installed: .*", "(installed: …)", told)
    text = "".join(f"asyncrl plugins test {mistake}\n    {answer}\n" for mistake, answer in answers.items())
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_every_slot_has_a_suite_whose_attributes_can_be_declared() -> None:
    assert list(SUITES) == list(SLOTS)
    for slot, suite in SUITES.items():
        assert {"imports", "rare_metrics", "examples"} <= set(attributes_of(suite)), slot
    assert {"order", "evicts"} <= set(attributes_of(SUITES["buffer"]))


def test_the_class_that_is_run_is_the_one_that_an_author_would_write() -> None:
    source = suite_source(
        discover().pick("buffer", "fifo", ""), {"capacity_factor": 3.0}, {"order": "fifo", "imports": ("torch",)}
    )
    assert source == (
        "\n\nclass TestFifoBuffer(SUITES['buffer']):\n"
        "    plugin = 'asyncrl-plugin-fifo:fifo'\n"
        "    options = {'capacity_factor': 3.0}\n"
        "    order = 'fifo'\n"
        "    imports = ('torch',)\n"
    )

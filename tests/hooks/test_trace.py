"""`--trace-hooks`: each call with plugin, arguments in short, answer and duration; no secrets; nothing changes because of it."""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asyncrl import KEEP, Group, Plugin, PluginOptions, Prompt, RunFacts, Sample, Score, Verdict, __version__, drop, hookimpl
from asyncrl.cli.main import main
from asyncrl.errors import PluginFailed
from asyncrl.hook_trace import IN_FULL, HookTrace, TraceFile, brief
from asyncrl.host import Active, Host
from asyncrl.plugins import PluginSpec, build_host
from pydantic import Field, SecretStr

RUN = RunFacts(batch_size=1, group_size=1, max_concurrent_samples=1, steps=1)
GROUP = Group(Prompt(3, np.zeros(1, np.int32)), ())
SECRET = "hunter2-hunter2"


class Options(PluginOptions):
    token: SecretStr = Field(SecretStr(SECRET), description="A key.")


class Judges(Plugin):
    Options = Options

    @hookimpl
    def judge_staleness(self, group: Group, version: int) -> Verdict:
        if version < 0:
            raise KeyError(f"no version for {self.options.token.get_secret_value()}")
        return drop("stale") if version else KEEP


class Wraps(Plugin):
    @hookimpl(wrapper=True)
    def judge_staleness(self) -> Generator[None, Verdict, Verdict]:
        return (yield)


class Watches(Plugin):
    @hookimpl
    def on_group_ended(self, fate: str, prompt_id: int) -> None: ...


class Task(Plugin):
    @hookimpl
    async def score_sample(self, prompt: Prompt) -> Score:
        return Score(0.5)


def traced(slot: str, *kinds: type[Plugin]) -> tuple[Host, list[str]]:
    lines: list[str] = []
    actives = [
        Active(slot, kind.__name__.lower(), f"dist-{index}", "1.0", kind(kind.Options(), RUN)) for index, kind in enumerate(kinds)
    ]
    return Host(actives, HookTrace(lines.append)), lines


def without_numbers(line: str) -> str:
    """A line without its time and duration."""
    found = re.fullmatch(r" *[\d-]*(?: [\d:.]+)?  (.*?) +[\d.]+ m?s(.*)", line)
    assert found, line
    return " ".join(f"{found[1]}{found[2]}".split())


def test_a_line_says_plugin_hook_arguments_answer_and_duration() -> None:
    host, lines = traced("staleness", Judges)
    judge = host.one("judge_staleness")
    assert judge(group=GROUP, version=0) is KEEP
    assert judge(group=GROUP, version=2) == drop("stale")
    assert [without_numbers(line) for line in lines] == [
        "staleness judges judge_staleness(group=Group(prompt_id=3), version=0) -> Verdict(action='keep')",
        "staleness judges judge_staleness(group=Group(prompt_id=3), version=2) -> Verdict(action='drop', reason='stale')",
    ]


def test_what_a_hook_raises_is_shown_without_secrets_and_raised_as_ever() -> None:
    host, lines = traced("staleness", Judges)
    with pytest.raises(PluginFailed, match=r"no version for \*{10}"):
        host.one("judge_staleness")(group=GROUP, version=-1)
    assert "raised KeyError: 'no version for **********'" in lines[0]
    assert SECRET not in lines[0]


def test_wrapped_observing_and_asynchronous_hooks_are_shown_too() -> None:
    host, lines = traced("staleness", Judges, Wraps)
    assert host.one("judge_staleness")(group=GROUP, version=0) is KEEP
    assert len(lines) == 1
    host, lines = traced("observers", Watches, Watches)
    host.observe("on_group_ended", prompt_id=7, fate="trained", tokens=9)
    assert [without_numbers(line) for line in lines] == [
        "observers watches on_group_ended(fate='trained', prompt_id=7) -> None"
    ] * 2


async def test_an_asynchronous_hook_is_shown_when_it_has_ended() -> None:
    host, lines = traced("task", Task)
    scored = host.one("score_sample")(prompt=GROUP.prompt, sample=None)
    assert lines == []
    assert await scored == Score(0.5)
    assert [without_numbers(line) for line in lines] == [
        "task task score_sample(prompt=Prompt(prompt_id=3)) -> Score(reward=0.5)"
    ]


def test_of_very_many_calls_some_are_shown_and_the_others_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    host, lines = traced("observers", Watches)
    monkeypatch.setattr("asyncrl.hook_trace.PAUSE_SECONDS", 1e9)
    for position in range(IN_FULL + 1200):
        host.observe("on_group_ended", prompt_id=position, fate="trained", tokens=9)
    assert len(lines) == IN_FULL
    monkeypatch.setattr("asyncrl.hook_trace.PAUSE_SECONDS", 0.0)
    host.observe("on_group_ended", prompt_id=0, fate="trained", tokens=9)
    assert lines[-1].endswith("(and 1,200 calls since the last line)")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None"),
        (True, "True"),
        (1 / 3, "0.333333"),
        ("a\nb", r"'a\nb'"),
        (Path("/tmp/x"), "/tmp/x"),
        (np.zeros((2, 3), np.float32), "ndarray float32[2, 3]"),
        ({"token": SECRET}, "dict of 1"),
        ([SECRET], "list of 1"),
        (Options(), "Options"),
        (GROUP.prompt, "Prompt(prompt_id=3)"),
        (
            Sample(np.zeros(2, np.int32), np.zeros(2, np.float32), np.ones(2, bool), ((1, 2),), "completed"),
            "Sample(1 spans, reward=0)",
        ),
        (object(), "object"),
    ],
)
def test_a_value_is_shown_by_type_and_size_and_never_by_content(value: Any, text: str) -> None:
    assert brief(value) == text
    assert len(brief("x" * 10_000)) < 100


# Where the lines go -------------------------------------------------------------------------------------------------------


def test_lines_wait_for_the_runs_directory_and_a_process_has_a_file_of_its_own(tmp_path: Path) -> None:
    file = TraceFile(tmp_path / "run", "rollout-1.txt")
    file.write("before")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "run").mkdir()
    file.write("after")
    assert (tmp_path / "run/hooks/rollout-1.txt").read_text() == "before\nafter\n"


def test_a_trace_that_cannot_be_written_ends_with_a_warning_and_not_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "hooks").write_text("a file in the way")
    file = TraceFile(tmp_path, "rollout-1.txt")
    for _ in range(3):
        file.write("line")
    assert len(caplog.messages) == 1
    assert "ends here" in caplog.messages[0]


def test_without_the_option_there_is_no_trace_and_with_it_each_process_names_its_file(tmp_path: Path) -> None:
    spec = PluginSpec("buffer", "fifo", "asyncrl-plugin-fifo", __version__, '{"capacity_factor": 2.0}')
    facts = replace(RUN, run_dir=str(tmp_path))
    assert build_host([spec], facts).trace is None
    host = build_host([spec], replace(facts, trace_hooks=True), {"buffer"})
    assert host.one("buffer_size")() == 0
    (file,) = (tmp_path / "hooks").iterdir()
    assert "buffer fifo" in file.read_text()


def test_a_simulation_writes_its_calls_to_stderr_by_the_virtual_clock_and_gives_the_same_result(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["simulate", "--steps", "3", "--batch-size", "2", "--group-size", "2", "--json"]
    assert main(arguments) == 0
    plain = capsys.readouterr()
    assert main([*arguments, "--trace-hooks"]) == 0
    shown = capsys.readouterr()
    assert shown.out == plain.out
    assert "buffer_put" not in plain.err
    puts = [line for line in shown.err.splitlines() if "buffer_put(group=Group(prompt_id=" in line]
    assert len(puts) >= 6
    assert all(re.match(r" +\d+\.\d{6}  buffer fifo ", line) for line in puts)

"""The console logger: what a person sees, on a terminal and elsewhere."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asyncrl import Axis, EvalRecord, MetricRecord, RunFacts, RunHeader, SetResult
from asyncrl.host import Active, Host, HostMetrics
from asyncrl.rollout.metrics import RolloutMetrics
from asyncrl.training.metrics import RunMetrics
from asyncrl_console import Console, ConsoleOptions
from asyncrl_console.progress import NAMES, Progress
from asyncrl_console.views import LiveView
from rich.console import Console as Out

FACTS = RunFacts(batch_size=4, group_size=2, max_concurrent_samples=8, steps=10)
VALUES = {
    "rollout/reward/mean": 0.25,
    "rollout/consumed_staleness/mean": 1.5,
    "rollout/consumed_staleness/max": 3,
    "rollout/buffer_size": 5,
    "rollout/producer_wait": 0.0,
    "run/step_seconds": 2.0,
    "run/wait_seconds": 0.5,
    "run/engine_tokens_per_second": 9812.4,
    "run/trainer_tokens_per_second": 11020.0,
}
RESULT = SetResult(0.625, 8, 8, 0.0, 0.0, 4.0, 3.0, 0.0)


def started(options: Mapping[str, Any] | None = None, **console: Any) -> Host:
    plugin = Console(ConsoleOptions(**console), FACTS)
    host = Host([Active("loggers", "console", "asyncrl-plugin-console", "0.1.0", plugin)])
    host.observe("log_start", header=RunHeader("demo", Path("/nowhere"), 10, options or {}, ()))
    return host


def step(number: int, time: float, **values: float) -> MetricRecord:
    return MetricRecord(Axis.TRAIN_STEP, number, time, {**VALUES, **values})


def shown(host: Host, capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert host.metrics.drain() == {}, "no call failed"
    return capsys.readouterr().out.splitlines()


def test_every_metric_that_is_read_by_name_is_declared() -> None:
    """Field report 40."""
    core = [*RolloutMetrics.declared("rollout"), *RunMetrics.declared("run"), *HostMetrics.declared("plugins")]
    declared = {metric.name + end for metric in core for end in ([""] if metric.kind != "distribution" else ["/mean", "/max"])}
    assert set(NAMES) <= declared


def test_a_plain_line_says_where_the_run_stands(capsys: pytest.CaptureFixture[str]) -> None:
    host = started({"buffer": {"name": "fifo", "capacity_factor": 2.0}}, every_seconds=0)
    host.observe("log_metrics", record=step(1, 100.0))
    host.observe("log_eval", record=EvalRecord(1, 1, sets={"digits": RESULT}))
    host.observe("log_metrics", record=step(2, 110.0))
    assert shown(host, capsys) == [
        "demo",
        "step 1/10 · reward 0.250 · staleness 1.5, max 3 · buffer 5 of 8 · engines 9,812 tok/s · trainer 11,020 tok/s · "
        "trainer waits 25%",
        "eval at step 1: digits 62.5%",
        "step 2/10 · reward 0.250 · eval digits 62.5% at 1 · staleness 1.5, max 3 · buffer 5 of 8 · engines 9,812 tok/s · "
        "trainer 11,020 tok/s · trainer waits 25% · left 1:20",
    ]


def test_plain_lines_about_steps_keep_their_distance_and_the_last_step_is_not_lost(capsys: pytest.CaptureFixture[str]) -> None:
    host = started(every_seconds=5)
    for number in range(1, 11):
        host.observe("log_metrics", record=step(number, 100.0 + number))
    host.observe("log_end", summary={})
    assert [line.split(" · ")[0] for line in shown(host, capsys)] == ["demo", "step 1/10", "step 6/10", "step 10/10"]


@pytest.mark.parametrize(
    ("wait", "producer", "text"),
    [
        (0.0, 0.0, "nobody waits"),
        (0.0, 1.0, "engines wait 50%"),
        (0.0, 40.0, "engines wait 100%"),
        (0.4, 0.2, "trainer waits 20%"),
    ],
)
def test_the_side_that_waits_more_is_named(wait: float, producer: float, text: str) -> None:
    progress = Progress(10)
    progress.add(step(1, 1.0, **{"rollout/producer_wait": 7.0}))
    progress.add(step(2, 2.0, **{"rollout/producer_wait": 7.0 + producer, "run/wait_seconds": wait}))
    assert progress.fields()["waiting"] == text


def test_what_has_not_been_measured_is_left_out() -> None:
    progress = Progress(10)
    progress.add(MetricRecord(Axis.TRAIN_STEP, 1, 1.0, {"rollout/reward/mean": 0.5}))
    assert progress.line() == "step 1/10 · reward 0.500"
    progress.add(MetricRecord(Axis.WALL_SECONDS, 99, 2.0, {"rollout/reward/mean": 0.9}))
    assert progress.line() == "step 1/10 · reward 0.500"


def test_warnings_skips_and_messages_before_the_start_are_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    plugin = Console(ConsoleOptions(), FACTS)
    host = Host([Active("loggers", "console", "asyncrl-plugin-console", "0.1.0", plugin)])
    host.observe("log_message", level="info", message="making the model [bold]")
    host.observe("log_start", header=RunHeader("demo", Path("/nowhere"), 10, {}, ()))
    host.observe("log_message", level="warning", message="still waiting for a batch")
    host.observe("log_message", level="warning", message="the evaluation of step 5 is skipped: busy")
    host.observe("log_eval", record=EvalRecord(5, 5, skipped="busy"))
    assert shown(host, capsys) == [
        "making the model [bold]",
        "demo",
        "warning: still waiting for a batch",
        "warning: the evaluation of step 5 is skipped: busy",
    ]


def test_an_eval_point_shows_pass_at_k_where_there_are_samples_for_it_and_what_failed() -> None:
    sampled = replace(RESULT, failed=0.125, pass_at={1: 0.5, 2: 0.625, 4: 0.75})
    line = Progress(10).add_eval(
        EvalRecord(4, 4, sets={"greedy": replace(RESULT, pass_at={1: 0.5}), "sampled": sampled}, lag_steps=2)
    )
    assert line == "eval at step 4: greedy 62.5%, sampled 62.5% (pass@4 75.0%, 12.5% failed), 2 steps late"


def test_a_terminal_gets_one_display_and_its_cursor_back() -> None:
    screen = io.StringIO()
    view = LiveView(Out(file=screen, force_terminal=True, width=120, highlight=False))
    progress = Progress(10, 8)
    view.start("demo", progress)
    progress.add(step(1, 100.0))
    view.step(100.0)
    progress.add_eval(EvalRecord(1, 1, sets={"digits": RESULT}))
    progress.add(step(2, 110.0))
    view.say("still waiting for a batch", "warning")
    view.end()
    text = screen.getvalue()
    for part in ("demo", "step 2/10", "62.5% at 1", "1.5, max 3", "5 of 8", "9,812 tok/s", "trainer waits 25%", "1:20"):
        assert part in text
    assert text.count("still waiting for a batch") == 1
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")

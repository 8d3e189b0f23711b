"""A trace is read as it was recorded or written by hand, and a wrong one is one line that names its place."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asyncrl.errors import UserError
from asyncrl.runtime.directory import RunDirectory
from asyncrl.runtime.summary import Totals
from asyncrl.simulation.trace import SHORTEST, read_trace
from asyncrl.training.loop import StepTimes


def written(path: Path, *lines: Any) -> Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def finished_run(path: Path) -> RunDirectory:
    """A run of two steps with one publication and one evaluation."""
    directory = RunDirectory(path, "run")
    directory.create("steps = 2\n")
    directory.add_trace([(1, (8, 2), (4.0, 1.0), (0.0, 1.0)), (0, (3, 3), (1.5, 1.5), (1.0, 1.0))])
    totals = Totals(publications=1, evaluations=1, paused=0.25)
    totals.books = {"staleness": {"mean": 1.25, "max": 2}}
    first = StepTimes(wait=1.0, train=4.0, publish=0.5, checkpoint=0.0, evaluation=8.0, total=13.5)
    second = StepTimes(wait=0.0, train=2.0, publish=0.0, checkpoint=1.0, evaluation=0.0, total=3.0)
    for step, times, paused in ((1, first, 0.25), (2, second, 0.0)):
        totals.add_step(times, times.train)
        directory.add_step(step, times, paused)
    directory.write_summary(totals.summary("completed", 20.0, ""))
    return directory


def test_a_line_is_a_number_a_list_or_a_recorded_group(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", 7, "", [1, 2], {"tokens": [3, 4], "seconds": [0.5, 1]}, {"tokens": [5], "rewards": [-1]})
    trace = read_trace(path)
    assert [group.tokens for group in trace.groups] == [(7,), (1, 2), (3, 4), (5,)]
    assert [group.seconds for group in trace.groups] == [(), (), (0.5, 1.0), ()]
    assert [group.rewards for group in trace.groups] == [(), (), (), (-1.0,)]
    assert (trace.source, trace.times) == (path, None)


def test_groups_come_in_the_order_in_which_they_were_issued(tmp_path: Path) -> None:
    """They are recorded as they finish, the short ones first."""
    path = written(tmp_path / "t.jsonl", *({"prompt_id": number, "tokens": [number + 1]} for number in (2, 0, 3, 1)))
    assert [group.tokens for group in read_trace(path).groups] == [(1,), (2,), (3,), (4,)]


def test_a_failed_sample_holds_its_slot_with_one_token(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", {"tokens": [0, 4], "seconds": [2.0, 0.0], "rewards": [0.0, 1.0]})
    (group,) = read_trace(path).groups
    assert (group.tokens, group.seconds) == ((1, 4), (2.0, SHORTEST))


def test_a_finished_run_gives_its_groups_and_its_times(tmp_path: Path) -> None:
    trace = read_trace(finished_run(tmp_path).path)
    assert [group.tokens for group in trace.groups] == [(3, 3), (8, 2)]
    times = trace.times
    assert times is not None
    assert (times.steps, times.step, times.staleness) == (2, 4.25, 1.25)
    assert (times.paused, times.evaluation) == (0.25, 8.0)
    assert times.trainer == (4.25, 3.0)
    assert times.trainer_mean == (4.25 + 3.0) / 2
    assert [times.trainer_seconds(step) for step in (1, 2, 3)] == [4.25, 3.0, 3.625]


def test_a_run_that_could_not_write_its_steps_gives_their_mean(tmp_path: Path) -> None:
    path = finished_run(tmp_path).path
    (path / "steps.jsonl").unlink()
    times = read_trace(path).times
    assert times is not None
    assert times.trainer_seconds(1) == 3.625


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (-3, "tokens holds -3"),
        ([4, -1], "tokens holds -1"),
        ([], "tokens is empty"),
        ([[1]], r"tokens holds \[1\]"),
        (1.5, "has no tokens: 1.5"),
        (True, "tokens holds true"),
        ("null", "has no tokens: null"),
        ("not json", "is no JSON: not json"),
        ("[" * 100_000, "is no JSON"),
        ({"length": [1]}, "has no tokens"),
        ({"tokens": 3}, "tokens holds 3"),
        ({"tokens": [3], "seconds": [-0.5]}, "seconds holds -0.5"),
        ('{"tokens": [3], "seconds": [NaN]}', "seconds holds NaN"),
        ({"tokens": [3], "seconds": []}, "has 0 seconds for 1 samples"),
        ({"tokens": [3, 4], "rewards": [1]}, "has 1 rewards for 2 samples"),
        ({"tokens": [3], "rewards": ["a"]}, 'rewards holds "a"'),
        ({"tokens": [3], "prompt_id": -1}, "prompt_id is -1"),
        (10**400, "tokens holds 1000"),
        (2**31, "tokens holds 2147483648"),
        ({"tokens": [3], "seconds": [10**400]}, "seconds holds 1000"),
        ({"tokens": [3], "seconds": [1e300]}, r"seconds holds 1e\+300"),
        ({"tokens": [3], "rewards": [10**400]}, "rewards holds 1000"),
        ({"tokens": [3], "rewards": [-1e300]}, r"rewards holds -1e\+300"),
        ({"tokens": [3], "prompt_id": 10**400}, "prompt_id is 1000"),
        ("1" * 5000, "is no JSON"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: Any, says: str) -> None:
    path = written(tmp_path / "t.jsonl", 7, line)
    with pytest.raises(UserError, match=says) as caught:
        read_trace(path)
    assert caught.value.origin == f"{path}:2"
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("content", ["", "\n\n", "0\n[0, 0]\n"])
def test_a_file_without_lengths_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(content)
    with pytest.raises(UserError, match="holds no lengths"):
        read_trace(path)


def test_the_greatest_numbers_that_are_taken_can_be_computed_with(tmp_path: Path) -> None:
    line = {"tokens": [2**31 - 1, 1], "seconds": [1e6, 0], "rewards": [1e15, -1e15], "prompt_id": 2**63 - 1}
    (group,) = read_trace(written(tmp_path / "t.jsonl", line)).groups
    assert np.isfinite(np.asarray(group.rewards, np.float32).var())


def test_a_file_that_is_missing_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no such file"):
        read_trace(tmp_path / "nowhere.jsonl")
    with pytest.raises(UserError, match="can't be read: File name too long"):
        read_trace(tmp_path / ("x" * 300))
    with pytest.raises(UserError, match="is no name of a file"):
        read_trace(tmp_path / "a\0b")
    (tmp_path / "t.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="is no UTF-8 text"):
        read_trace(tmp_path / "t.jsonl")


def test_a_directory_that_is_no_finished_run_says_what_it_lacks(tmp_path: Path) -> None:
    path = finished_run(tmp_path).path
    for name, says in (
        ("trace.jsonl", "recorded no trace.jsonl"),
        ("summary.json", "the run has not finished"),
        ("config.toml", "is no run's directory"),
    ):
        (path / name).unlink()
        with pytest.raises(UserError, match=says):
            read_trace(path)


@pytest.mark.parametrize("summary", ["{", "{}", '{"steps": 3, "seconds": {"step": 1}}', "[]"])
def test_a_summary_that_says_no_times_is_refused(tmp_path: Path, summary: str) -> None:
    path = finished_run(tmp_path).path
    (path / "summary.json").write_text(summary)
    with pytest.raises(UserError, match=r"summary\.json: can't be read"):
        read_trace(path)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, 1e300, -1.0, 10**400])
def test_a_summary_with_times_that_no_run_has_is_refused(tmp_path: Path, seconds: float) -> None:
    path = finished_run(tmp_path).path
    summary = json.loads((path / "summary.json").read_text())
    summary["seconds"]["step"] = seconds
    (path / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(UserError, match=r"summary\.json: "):
        read_trace(path)


HUGE = f'{{"train": 1{"0" * 400}, "publish": 0, "paused": 0.5, "checkpoint": 0}}'
LONG = '{"train": 1e300, "publish": 0, "paused": 0, "checkpoint": 0}'


@pytest.mark.parametrize(
    "line", ["7", HUGE, LONG, "{", '{"train": 1}', '{"train": NaN, "publish": 0, "paused": 0, "checkpoint": 0}']
)
def test_a_wrong_line_of_a_steps_file_is_named(tmp_path: Path, line: str) -> None:
    path = finished_run(tmp_path).path
    with (path / "steps.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(UserError) as caught:
        read_trace(path)
    assert caught.value.origin == f"{path / 'steps.jsonl'}:3"


def test_a_run_that_trained_nothing_gives_no_times(tmp_path: Path) -> None:
    directory = finished_run(tmp_path)
    directory.write_summary(Totals().summary("failed", 1.0, "why"))
    with pytest.raises(UserError, match="not finished a single step"):
        read_trace(directory.path)

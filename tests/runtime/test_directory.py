"""The run directory is made once and never overwritten."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from asyncrl.errors import RunDirectoryError
from asyncrl.runtime.directory import RunDirectory, run_name
from asyncrl.training.loop import StepTimes
from small_disk import BALLAST, fill, small_disk


def test_an_existing_run_directory_is_refused(tmp_path: Path) -> None:
    RunDirectory(tmp_path, "one").create("steps = 1\n")
    with pytest.raises(RunDirectoryError, match="exists already"):
        RunDirectory(tmp_path, "one")


@pytest.mark.parametrize("name", ["a/b", "..", "."])
def test_a_name_that_leaves_the_runs_directory_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RunDirectoryError, match="no name for a run"):
        RunDirectory(tmp_path, name)


def test_a_place_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirectoryError, match="cannot make the run directory"):
        RunDirectory(tmp_path / "file", "one").create("")


def test_the_name_is_the_files_and_the_time_unless_given() -> None:
    assert run_name("mine", Path("demo.toml")) == "mine"
    assert run_name("", Path("a/demo.toml")).startswith("demo-20")


def test_what_came_after_a_checkpoint_is_taken_back(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path, "one")
    directory.create("steps = 9\n")
    write = {"steps.jsonl": [1, 2, 3, 4], "evals.jsonl": [0, 2, 4, 1], "trace.jsonl": [7, 5, 6]}
    for name, steps in write.items():
        (directory.path / name).write_text("".join(json.dumps({"step": step}) + "\n" for step in steps) + "\0\0\n" + '{"step": 1')
    directory.write_summary({"outcome": "completed", "steps": 4})
    assert directory.completed(4) and not directory.completed(5)
    directory.cut(2, traced=2)
    left = {name: [line["step"] for line in directory.lines(name)] for name in write}
    assert left == {"steps.jsonl": [1, 2], "evals.jsonl": [0, 2, 1], "trace.jsonl": [7, 5]}
    assert (directory.path / "steps.jsonl").read_text() == '{"step": 1}\n{"step": 2}\n'
    assert not directory.completed(4)
    directory.lock.release()


def test_a_run_that_goes_on_is_not_removed_when_it_is_refused(tmp_path: Path) -> None:
    first = RunDirectory(tmp_path, "one")
    first.create("steps = 1\n")
    first.lock.release()
    again = RunDirectory(tmp_path, "one", resumed=True)
    again.create("steps = 2\n")
    again.remove()
    assert again.untouched
    assert (tmp_path / "one" / "config.toml").read_text() == "steps = 1\n", "what was refused is not remembered"


def test_a_run_has_its_new_options_once_it_goes_on(tmp_path: Path) -> None:
    first = RunDirectory(tmp_path, "one")
    first.create("steps = 1\n")
    first.lock.release()
    again = RunDirectory(tmp_path, "one", resumed=True)
    again.create("steps = 2\n")
    again.cut(0, traced=0)
    assert not again.untouched
    assert (tmp_path / "one" / "config.toml").read_text() == "steps = 2\n"


def step_times() -> StepTimes:
    return StepTimes(wait=0, train=1, publish=0, checkpoint=0, evaluation=0, total=1)


@pytest.fixture
def full(tmp_path: Path) -> Iterator[RunDirectory]:
    """A run of 4 steps on a disk that is full by now: the last two steps wait to be written."""
    with small_disk(tmp_path / "disk", 256) as disk:
        directory = RunDirectory(disk, "one")
        directory.create("steps = 9\n")
        for step in (1, 2):
            directory.add_step(step, step_times(), 0.0)
        fill(disk)
        for step in (3, 4):
            # a page that is there already takes some lines more
            with pytest.raises(OSError, match="No space"):
                while True:
                    directory.add_step(step, step_times(), 0.0)
        yield directory
        directory.lock.release()


def steps(directory: RunDirectory) -> list[int]:
    return sorted({line["step"] for line in directory.lines("steps.jsonl")})


def test_what_waits_for_room_on_a_full_disk_is_taken_back_too(full: RunDirectory) -> None:
    assert steps(full) == [1, 2, 3, 4]
    full.cut(3, 0)
    assert steps(full) == [1, 2, 3]
    (full.path.parent / BALLAST).unlink()
    full.flush()
    assert [*{json.loads(line)["step"]: 0 for line in (full.path / "steps.jsonl").open()}] == [1, 2, 3]


def test_a_full_disk_keeps_the_summary_that_there_is(full: RunDirectory) -> None:
    (full.path.parent / BALLAST).unlink()
    full.write_summary({"outcome": "completed", "steps": 4})
    fill(full.path.parent)
    with pytest.raises(OSError, match="No space"):
        full.write_summary({"outcome": "x" * 100_000})
    assert full.completed(4)
    assert not [path.name for path in full.path.iterdir() if path.name.startswith(".")]

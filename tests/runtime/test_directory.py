"""The run directory is made once and never overwritten."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from asyncrl.errors import RunDirectoryError
from asyncrl.runtime.directory import RunDirectory, run_name


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
    assert (tmp_path / "one" / "config.toml").read_text() == "steps = 2\n"

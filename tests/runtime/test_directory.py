"""The run directory is made once and never overwritten."""

from __future__ import annotations

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

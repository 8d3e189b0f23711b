"""Logs begin anew when they have grown, lose nothing but what is old, and a full disk costs lines and no more."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest
from asyncrl.runtime import child
from asyncrl.runtime.last_words import last_lines, last_words
from asyncrl.runtime.log_files import OutputLog, RunLog, older

SECONDS = 120.0


def log_lines(handler: logging.Handler, count: int) -> None:
    for number in range(count):
        handler.handle(logging.LogRecord("asyncrl", logging.INFO, __file__, 0, f"line {number:04d} {'x' * 80}", None, None))


def test_the_runs_log_begins_anew_between_two_lines(tmp_path: Path) -> None:
    handler = RunLog(tmp_path / "log.txt", 2000)
    log_lines(handler, 50)
    handler.close()
    text = older(tmp_path / "log.txt").read_text() + (tmp_path / "log.txt").read_text()
    numbers = [int(line.split()[1]) for line in text.splitlines()]
    assert numbers == list(range(numbers[0], 50))
    assert all((tmp_path / name).stat().st_size <= 2000 for name in ("log.txt", "log.txt.1"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.txt", "log.txt.1"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
def test_a_full_disk_is_said_once_and_the_log_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log.txt").symlink_to("/dev/full")
    handler = RunLog(tmp_path / "log.txt", 0)
    log_lines(handler, 200)
    handler.close()
    told = capsys.readouterr().err
    assert told.count("can't be written: No space left on device") == 1
    assert "Traceback" not in told


def test_what_a_server_says_is_kept_up_to_the_limit_in_whole_lines(tmp_path: Path) -> None:
    log = OutputLog(tmp_path / "engine-0.txt", 1000)
    data = b"".join(f"line {number:04d}\n".encode() for number in range(500))
    for start in range(0, len(data), 37):
        log.write(data[start : start + 37])
    former, present = older(tmp_path / "engine-0.txt").read_bytes(), (tmp_path / "engine-0.txt").read_bytes()
    assert data.endswith(former + present)
    assert former.endswith(b"\n") and former.startswith(b"line ")
    assert len(former) <= 1037 and len(present) <= 1000


def test_a_log_that_has_just_begun_anew_is_there(tmp_path: Path) -> None:
    path = tmp_path / "engine-0.txt"
    log = OutputLog(path, 10)
    log.write(b"line 0\nline 1\n")
    assert (older(path).read_bytes(), path.read_bytes()) == (b"line 0\nline 1\n", b"")


def test_the_last_words_are_found_when_the_log_has_just_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "engine-0.txt"
    older(path).write_text("starting\nRuntimeError: CUDA out of memory\n")
    assert last_words(path) == "RuntimeError: CUDA out of memory"
    path.write_text("bye\n")
    assert last_words(path) == "RuntimeError: CUDA out of memory"
    assert last_lines(path, 2) == "RuntimeError: CUDA out of memory\nbye"


def test_a_server_that_says_much_leaves_two_files_and_its_end_is_in_them(tmp_path: Path) -> None:
    path = tmp_path / "engine-0.txt"
    code = "for number in range(20000): print(f'line {number:06d}')\nimport sys; print('error: that was all', file=sys.stderr)"
    process = child.spawn([sys.executable, "-c", code], env={}, log_file=path, log_bytes=50_000)
    assert process.wait(SECONDS) == 0
    assert last_words(path) == "error: that was all"
    lines = (older(path).read_text() + path.read_text()).splitlines()[:-1]
    assert lines[-1] == "line 019999"
    assert path.stat().st_size + older(path).stat().st_size < 250_000


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
def test_a_server_does_not_notice_that_its_log_found_no_room(tmp_path: Path) -> None:
    path = tmp_path / "engine-0.txt"
    path.symlink_to("/dev/full")
    code = "for number in range(20000): print(f'line {number:06d}', flush=True)\nraise SystemExit(7)"
    process = child.spawn([sys.executable, "-c", code], env={}, log_file=path)
    assert process.wait(SECONDS) == 7

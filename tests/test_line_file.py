"""Lines are whole or not there, in order, and none is lost when the disk is full for a while."""

from __future__ import annotations

import contextlib
import errno
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from asyncrl.errors import CheckpointError
from asyncrl.line_file import LineFile, is_full
from small_disk import small_disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 64) as place:
        yield place


def numbers(path: Path) -> list[int]:
    return [json.loads(line)["number"] for line in path.read_text().splitlines()]


def test_lines_that_found_no_room_follow_when_there_is_some(disk: Path) -> None:
    ballast = disk / "ballast"
    ballast.write_bytes(b"x" * 48 * 1024)
    file = LineFile(disk / "lines")
    failed = 0
    for number in range(100):
        try:
            file.add(json.dumps({"number": number, "text": "x" * 300}).encode() + b"\n")
        except OSError as error:
            failed += 1
            assert is_full(error)
    assert failed
    assert numbers(file.path) == list(range(100 - failed)), "whole lines, whatever the disk took of the last one"
    ballast.unlink()
    file.flush()
    assert numbers(file.path) == list(range(100))


@pytest.mark.parametrize("belongs", [lambda number: number < 60, lambda number: number % 3 != 1])
def test_lines_are_taken_back_on_a_full_disk_and_from_those_that_wait(disk: Path, belongs: Callable[[int], bool]) -> None:
    (disk / "ballast").write_bytes(b"x" * 32 * 1024)
    file = LineFile(disk / "lines")
    for number in range(150):
        with contextlib.suppress(OSError):
            file.add(json.dumps({"number": number, "text": "x" * 300}).encode() + b"\n")
    stay = [number for number in range(150) if belongs(number)]
    assert len(numbers(file.path)) < 150
    file.keep(lambda text: belongs(json.loads(text)["number"]))
    assert [json.loads(line)["number"] for line in file] == stay
    (disk / "ballast").unlink()
    file.flush()
    assert numbers(file.path) == stay
    assert list(disk.iterdir()) == [file.path]


LIMITED = """
import json, resource, sys
from pathlib import Path
from asyncrl.line_file import LineFile
file, failed = LineFile(Path(sys.argv[1])), 0
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
for number in range(20):
    try:
        file.add(json.dumps({"number": number, "text": "x" * 77}).encode() + b"\\n")
    except OSError:
        failed += 1
whole = [json.loads(line)["number"] for line in file.path.read_text().splitlines()]
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
file.add(json.dumps({"number": 20}).encode() + b"\\n")
print(json.dumps([failed, whole]))
"""


def test_a_file_that_may_not_grow_holds_whole_lines_and_gets_the_others_later(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    told = subprocess.run([sys.executable, "-c", LIMITED, str(path)], capture_output=True, text=True, timeout=120, check=True)
    failed, whole = json.loads(told.stdout)
    assert 0 < failed < 20
    assert whole == list(range(20 - failed))
    assert numbers(path) == list(range(21))


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), True),
        (CheckpointError("can't write the trainer's state: No space left on device"), True),
        (OSError(errno.EACCES, "Permission denied"), False),
        (CheckpointError("rank 1 died"), False),
    ],
)
def test_a_full_disk_is_known_wherever_it_was_met(error: Exception, full: bool) -> None:
    assert is_full(error) is full
    chained = CheckpointError("checkpoint of step 4")
    chained.__cause__ = error
    assert is_full(chained) is full

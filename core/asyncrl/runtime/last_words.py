"""Why a server ended, in its own words: the line of its log that says so."""

from __future__ import annotations

import re
from pathlib import Path

from asyncrl.runtime.log_files import older

LOOKED_AT = 2**16
LONGEST = 400
ERROR = re.compile(
    r"^(?:\[[^\]]*\] *)?(?:[\w-]+[ \w.-]*: )?(error: \S.*|(?:\w+\.)*\w*(?:Error|Exception|Interrupt): ?\S.*)$", re.IGNORECASE
)
NOISE = re.compile(r"SystemExit|KeyboardInterrupt|ChildFailedError|kill_process_tree", re.IGNORECASE)


def last_words(log: Path) -> str:
    """Return the last line of a log that tells an error, shortened, or '' if none does."""
    for line in reversed(_lines(log)):
        found = ERROR.match(line.strip())
        if found and not NOISE.search(line):
            return _short(found[1])
    return ""


def last_lines(log: Path, count: int) -> str:
    """Return the last lines of a log, each shortened."""
    return "\n".join(_short(line) for line in _lines(log)[-count:]) or "(no log)"


def _lines(log: Path) -> list[str]:
    end = _end(log, LOOKED_AT)
    if len(end) < LOOKED_AT:  # it has just begun anew
        end = _end(older(log), LOOKED_AT - len(end)) + end
    return end.decode(errors="replace").splitlines()


def _end(path: Path, count: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - count))
            return file.read()
    except OSError:
        return b""


def _short(line: str) -> str:
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"

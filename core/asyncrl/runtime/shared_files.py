"""Files in shared memory that a command's processes have made. Killed processes leave them, and SGLang's are killed each time."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

SHARED = "/dev/shm"
LIST = "shared-files"
LOOKS = 3
"""How often a file is looked at before it counts as somebody else's."""


class SharedFiles:
    """Notes which files a process group has made since this was; only those that lie in `SHARED` itself.

    Args:
        group: of the processes; one that made a file has it open or mapped for a while.
        directory: where the names are written down, for whoever cleans up after this process is killed.
    """

    def __init__(self, group: int, directory: Path) -> None:
        self._group = group
        self._list = directory / LIST
        self._before = set(_files())
        self._looks: Counter[str] = Counter()
        self._made: set[str] = set()

    def look(self) -> None:
        """Look for new ones. Costs nothing where there is no new file."""
        known = self._before | self._made
        new = {name: inode for name, inode in _files().items() if name not in known and self._looks[name] < LOOKS}
        if not new:
            return
        self._looks.update(new.keys())
        held = _held_by(pid for pid in _processes() if _group_of(pid) == self._group)
        found = {name for name, inode in new.items() if inode in held}
        if found:
            self._made |= found
            with contextlib.suppress(OSError):  # a full disk
                self._list.write_text("\n".join(sorted(self._made)))


def remove_shared_files(directory: Path) -> None:
    """Remove the files written down in a directory that no process has any more."""
    try:
        names = (directory / LIST).read_text().split("\n")
    except OSError:
        return
    files, held = _files(), _held_by(_processes())
    for name in names:
        if name in files and files[name] not in held:
            with contextlib.suppress(OSError):
                os.unlink(f"{SHARED}/{name}")


def _files() -> dict[str, int]:
    """The user's files, and the inode of each: what a process has mapped may have been renamed since, as semaphores are."""
    found = {}
    with contextlib.suppress(OSError), os.scandir(SHARED) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.getuid():
                    found[entry.name] = entry.inode()
    return found


def _processes() -> Iterator[Path]:
    return (entry for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _group_of(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[2])
    except OSError:  # it has ended
        return -1


def _held_by(processes: Iterable[Path]) -> set[int]:
    """Inodes of the files in `SHARED` that processes have open or mapped."""
    inodes: set[int] = set()
    for process in processes:
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            lines = (process / "maps").read_text().splitlines()
            inodes.update(int(line.split()[4]) for line in lines if f" {SHARED}/" in line)
            for link in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if os.readlink(link).startswith(f"{SHARED}/"):
                        inodes.add(os.stat(link).st_ino)
    return inodes

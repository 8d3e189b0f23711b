"""Groups sorted by rank, from which the first, the first among the oldest versions, and the last can be taken."""

from __future__ import annotations

from typing import NamedTuple

from asyncrl import Group
from sortedcontainers import SortedList


class Held(NamedTuple):
    """A group on the shelf. The lowest rank comes first, and among equal ranks the earliest arrival, which is unique."""

    rank: float
    arrival: int
    score: float
    group: Group


class Shelf:
    """Adding and taking cost O(log n) in the groups held; taking what is due also O(versions held), which a staleness bound keeps few."""

    def __init__(self) -> None:
        self._all: SortedList[Held] = SortedList()
        self._of_version: dict[int, SortedList[Held]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def add(self, held: Held) -> None:
        self._all.add(held)
        of_version = self._of_version.get(held.group.oldest_version)
        if of_version is None:
            of_version = self._of_version[held.group.oldest_version] = SortedList()
        of_version.add(held)

    def take_first(self) -> Group:
        """Remove and return the group that comes first. Raises IndexError when empty."""
        return self._forget(self._all.pop(0), 0)

    def take_due(self, due: int) -> Group | None:
        """Remove and return the first among the groups with an `oldest_version` of at most `due`; None when there is none."""
        heads = [of_version[0] for version, of_version in self._of_version.items() if version <= due]
        if not heads:
            return None
        first = min(heads)
        self._all.remove(first)
        return self._forget(first, 0)

    def take_last(self) -> Group:
        """Remove and return the group that comes last. Raises IndexError when empty."""
        return self._forget(self._all.pop(), -1)

    def by_arrival(self) -> list[Held]:
        """Return what is held, the earliest arrival first."""
        return sorted(self._all, key=lambda held: held.arrival)

    def _forget(self, held: Held, end: int) -> Group:
        """What is first or last of all is so in its version too."""
        of_version = self._of_version[held.group.oldest_version]
        of_version.pop(end)
        if not of_version:
            del self._of_version[held.group.oldest_version]
        return held.group

"""Finds the engine with the fewest requests in flight, at a cost that hardly grows with the number of engines."""

from __future__ import annotations

from collections.abc import Sequence

from asyncrl.rollout.engine import Engine

DEAD = -1


class LeastLoaded:
    """Engines by how many requests they have in flight: for each such number, one integer in which bit i stands for engine i.

    The engine that is about to be chosen is asked again, and a dead one is asked at each choice whether it lives. So these books may
    lag behind an engine that got more requests or died, but not behind one that got rid of a request: tell them by `changed`.

    Args:
        engines: kept, not copied: an engine appended later takes part.
    """

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = engines
        self._loads: list[int] = []
        self._at: dict[int, int] = {}

    def choose(self, affinity: int, avoid: int = -1) -> int:
        """Return the place of the live engine with the fewest requests in flight; among equals, the first one from place
        `affinity % count` on and round. The one at `avoid` only if no other lives; -1 if none does."""
        if DEAD in self._at or len(self._loads) < len(self._engines):
            self._catch_up()
        count = len(self._loads)
        start = affinity % count if count else 0
        while True:
            load, place = self._first(start, avoid)
            if place < 0:
                return avoid if avoid >= 0 and self._engines[avoid].alive else -1
            engine = self._engines[place]
            if engine.alive and engine.in_flight == load:
                return place
            self.changed(place)

    def starts(self, place: int) -> None:
        """The engine at a place is about to be sent a request."""
        self._put(place, self._engines[place].in_flight + 1)

    def changed(self, place: int) -> None:
        """The engine at a place has another load than before, or died, or came back."""
        if place < len(self._loads):  # else it is not taken in yet
            engine = self._engines[place]
            self._put(place, engine.in_flight if engine.alive else DEAD)

    def _catch_up(self) -> None:
        """Take in engines that were appended or came back."""
        while len(self._loads) < len(self._engines):
            self._loads.append(DEAD)
            self._at[DEAD] = self._at.get(DEAD, 0) | 1 << (len(self._loads) - 1)
        dead = self._at.get(DEAD, 0)
        while dead:
            place = dead.bit_length() - 1
            dead ^= 1 << place
            self.changed(place)

    def _first(self, start: int, avoid: int) -> tuple[int, int]:
        """Return the lowest load and the first place with it from `start` on and round, without `avoid`; place -1 if there is none."""
        for load in sorted(self._at):
            places = self._at[load]
            if avoid >= 0:
                places &= ~(1 << avoid)
            if load == DEAD or not places:
                continue
            after = places >> start
            # x & -x is the lowest bit of x.
            return load, start + (after & -after).bit_length() - 1 if after else (places & -places).bit_length() - 1
        return 0, -1

    def _put(self, place: int, load: int) -> None:
        before = self._loads[place]
        if before == load:
            return
        bit = 1 << place
        self._loads[place] = load
        left = self._at[before] ^ bit
        if left:
            self._at[before] = left
        else:
            del self._at[before]
        self._at[load] = self._at.get(load, 0) | bit

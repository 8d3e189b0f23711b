"""The buffer plugin with its books and the ages of what it holds, kept as running sums beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

from asyncrl.errors import BooksError, PluginFailed
from asyncrl.host import Host
from asyncrl.ledger import Ledger
from asyncrl.rollout.verdicts import ACCEPTED, PutOutcome, Restored, State, Taken
from asyncrl.samples import Group


class GroupStore:
    """Puts and takes through the buffer plugin; the ledger follows each move.

    Attributes:
        size: groups held.
        bytes: memory of their arrays.
        versions: how many of them by oldest version.
        oldest_version: oldest of these versions; infinite when nothing is held.
    """

    def __init__(self, host: Host, ledger: Ledger) -> None:
        self.size = 0
        self.bytes = 0
        self.owner = host.owner("buffer_put")
        self._put = host.one("buffer_put")
        self._score = host.one("score_group") if host.has("score_group") else None
        self._take = host.one("buffer_take")
        self._knows_due = host.takes("buffer_take", "due")
        self._real_size = host.one("buffer_size")
        self._state = host.one("buffer_state")
        self._restore = host.one("buffer_restore")
        self._host = host
        self._ledger = ledger
        self.versions: dict[int, int] = {}
        self.oldest_version = math.inf
        self._version_sum = 0

    def put(self, group: Group) -> PutOutcome:
        """Offer a group. Evicted groups have left the store but are still *buffered* in the ledger: the caller ends them."""
        score = self._scored(group) if self._score is not None else 0.0
        outcome: PutOutcome = self._put(group=group, score=score)
        if outcome is not ACCEPTED and (not isinstance(outcome, PutOutcome) or (outcome.evicted and not outcome.stored)):
            raise PluginFailed(f"{self.owner} answered buffer_put with {outcome!r}; right are accepted(evicted) and FULL")
        if outcome.stored:
            self._ledger.buffered(group.prompt_id)
            self._count(group, 1)
            for evicted in outcome.evicted:
                self._count(evicted, -1)
        return outcome

    def take(self, version: int, due: int = -1) -> Group | None:
        """Take the next group for the trainer that is about to improve `version`, one with an oldest version of at most `due` if there
        is any and the buffer knows `due`; None when the buffer gives none."""
        due = due if self._knows_due else -1
        answer = self._take(version=version, due=due)
        if not isinstance(answer, Taken) or len(answer.groups) > 1:
            raise PluginFailed(f"{self.owner} answered buffer_take with {answer!r}; right are taken(group) and NOTHING")
        if not answer.groups:
            return None
        group = answer.groups[0]
        try:
            self._ledger.batched(group.prompt_id)
        except BooksError as cause:
            raise PluginFailed(f"{self.owner} gave a group that it did not hold: {cause}") from cause
        if self.oldest_version <= due < group.oldest_version:
            raise PluginFailed(
                f"{self.owner} was asked for a group of version {due} or older, of which it holds some, and gave one of version "
                f"{group.oldest_version}"
            )
        self._count(group, -1)
        return group

    def ages(self, version: int) -> tuple[int, int, int, int]:
        """Return count, sum, minimum and maximum of the staleness of what is held."""
        if not self.versions:
            return 0, 0, 0, 0
        oldest, newest = int(self.oldest_version), max(self.versions)
        return self.size, self.size * version - self._version_sum, version - newest, version - oldest

    def check(self) -> None:
        """Raise `PluginFailed` when the buffer lost or doubled a group."""
        if (real := self._real_size()) != self.size:
            raise PluginFailed(f"{self.owner} holds {real} groups, but was given {self.size} that it did not hand back")

    def state(self) -> State:
        state: State = self._state()
        if len(state.groups) != self.size:
            raise PluginFailed(f"{self.owner} gave a state of {len(state.groups)} groups while it holds {self.size}")
        return state

    def restore(self, state: State) -> Sequence[Group]:
        """Fill an empty buffer and return the groups it holds now. The caller restores the ledger."""
        restored: Any = self._restore(state=state)
        if not isinstance(restored, Restored):
            raise PluginFailed(f"{self.owner} answered buffer_restore with {restored!r}; right is Restored(left_out)")
        left_out = {group.prompt_id for group in restored.left_out}
        held = [group for group in state.groups if group.prompt_id not in left_out]
        for group in held:
            self._count(group, 1)
        self.check()
        return held

    def _scored(self, group: Group) -> float:
        assert self._score is not None
        score = self._score(group=group)
        if not isinstance(score, Real) or not math.isfinite(score):
            raise PluginFailed(f"{self._host.owner('score_group')} answered score_group with {score!r}; right is a finite number")
        return float(score)

    def _count(self, group: Group, change: int) -> None:
        version = group.oldest_version
        versions = self.versions
        self.size += change
        self.bytes += change * group.num_bytes
        self._version_sum += change * version
        left = versions.get(version, 0) + change
        if left:
            versions[version] = left
            if version < self.oldest_version:
                self.oldest_version = version
        else:
            del versions[version]
            if version == self.oldest_version:
                self.oldest_version = min(versions, default=math.inf)

"""Which groups must be trained by when, and what the batch being assembled must leave room for."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from asyncrl.authoring import RunFacts
from asyncrl.errors import PluginFailed
from asyncrl.host import Host
from asyncrl.rollout.verdicts import Deadline

NONE_DUE = -1


@dataclass(frozen=True, slots=True)
class Call:
    """What the next place of a batch is for.

    Attributes:
        due: groups whose oldest version is at most this go first; `NONE_DUE` for none.
        only: whether the place must stay free for such a group, wherever it is.
    """

    due: int = NONE_DUE
    only: bool = False


ANY = Call()


class Claims:
    """Groups that are outstanding claim places in the batches up to their deadline, by the staleness policy's word.

    By *earliest deadline first*, all of them can be placed exactly if for each deadline d no more groups are due by d than there are
    places in the batches up to d (Liu and Layland, 1973, section 7, for unit jobs). A place may thus go to a later group as long as
    that stays true.

    Attributes:
        in_flight: groups in flight by the version under which they were started, which no token of theirs is older than.
        batches_of_version: batches that are still to be handed out before the next publication, the one being assembled included.
        steps_left: batches the run still needs, likewise.
        known: whether groups have a deadline at all.
    """

    def __init__(self, host: Host, facts: RunFacts) -> None:
        self.in_flight: dict[int, int] = {}
        self.batches_of_version = facts.publish_interval
        self.steps_left = facts.steps
        self._facts = facts
        hook = deadline_hook(host)
        self.known = hook is not None
        self._deadline = hook or _never
        self._due_at = _DueAt(-1, ANY, False)

    def started(self, version: int) -> None:
        """A group was started while the engines served `version`."""
        self.in_flight[version] = self.in_flight.get(version, 0) + 1

    def ended(self, version: int) -> None:
        """A group that was started under `version` is finished, or given up."""
        left = self.in_flight[version] - 1
        if left:
            self.in_flight[version] = left
        else:
            del self.in_flight[version]

    def batches_to_deadline(self, version: int) -> int:
        """Batches that may train a group started under `version` now; all that the run still needs without a deadline."""
        last = self._deadline(version).version
        return min(self.steps_left, self.batches_of_version + (last - version) * self._facts.publish_interval)

    def call(self, version: int, room: int, held: Mapping[int, int], waiting: Iterable[int]) -> Call:
        """Say which groups may take the next place of the batch for the trainer that is about to improve `version`.

        Args:
            room: places that the batch still has.
            held: groups in the buffer by oldest version.
            waiting: oldest versions of the finished groups that wait at a full buffer.
        """
        if not self.known:
            return ANY
        if version != self._due_at.version:
            self._due_at = _DueAt(version, Call(self._due(version)), self._deadline(version).waits)
        if not self._due_at.waits:
            return self._due_at.call
        return self._kept(version, room, held, waiting)

    def _kept(self, version: int, room: int, held: Mapping[int, int], waiting: Iterable[int]) -> Call:
        outstanding = dict(held)
        for oldest in waiting:
            outstanding[oldest] = outstanding.get(oldest, 0) + 1
        for started, count in self.in_flight.items():
            outstanding[started] = outstanding.get(started, 0) + count
        claimed, saturated, due = 0, 0, NONE_DUE
        for oldest in sorted(outstanding):
            deadline = self._deadline(oldest).version
            if deadline < version:  # too late whatever happens: it is refused when it is taken, and nobody waits for it
                continue
            if due != NONE_DUE and deadline > saturated:
                break
            claimed += outstanding[oldest]
            batches_after = self.batches_of_version - 1 + (deadline - version) * self._facts.publish_interval
            run_goes_on = batches_after + 1 < self.steps_left
            if due != NONE_DUE or (run_goes_on and claimed >= room + batches_after * self._facts.batch_size):
                due, saturated = oldest, deadline
        return self._due_at.call if due == NONE_DUE else Call(due, only=True)

    def _due(self, version: int) -> int:
        """Return the newest version whose groups have reached their deadline at `version`; deadlines never decrease."""
        return bisect_right(range(version + 1), version, key=lambda oldest: self._deadline(oldest).version) - 1


@dataclass(frozen=True, slots=True)
class _DueAt:
    """What is called first when the trainer is about to improve `version`, and whether it waits for groups that would become too old."""

    version: int
    call: Call
    waits: bool


def deadline_hook(host: Host) -> Callable[[int], Deadline] | None:
    """Return the staleness policy's `staleness_deadline`, its answers checked; None where the policy has no deadlines.

    The callable raises `PluginFailed` for an answer that makes no sense.
    """
    if not host.has("staleness_deadline"):
        return None
    ask, owner = host.one("staleness_deadline"), host.owner("staleness_deadline")

    def deadline(oldest: int) -> Deadline:
        answer = ask(oldest=oldest)
        if not isinstance(answer, Deadline) or answer.version < oldest:
            raise PluginFailed(
                f"{owner} answered staleness_deadline({oldest}) with {answer!r}; right is a Deadline of that version or later"
            )
        return answer

    return lru_cache(maxsize=1024)(deadline)


def _never(oldest: int) -> Deadline:
    return Deadline(sys.maxsize)

"""The answers of the hooks around the buffer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from asyncrl.samples import Group


@dataclass(frozen=True, slots=True)
class Verdict:
    """Keep a group, drop it for good, or issue its prompt again. Use `KEEP`, `drop(reason)` and `retry(reason)`."""

    action: Literal["keep", "drop", "retry"]
    reason: str = ""


KEEP = Verdict("keep")


def drop(reason: str) -> Verdict:
    """Refuse a group for good. `reason` is a short word, such as ``stale``; it becomes a metric label."""
    return Verdict("drop", reason)


def retry(reason: str) -> Verdict:
    """Refuse a group and have its pristine prompt issued again (at most `max_retries` times)."""
    return Verdict("retry", reason)


@dataclass(frozen=True, slots=True)
class Deadline:
    """Until when a group may be trained.

    Attributes:
        version: the last version that it may improve.
        waits: whether the trainer waits for such a group in flight instead of passing its deadline.
    """

    version: int
    waits: bool = False


@dataclass(frozen=True, slots=True)
class PutOutcome:
    """Answer to a put: stored, with the groups that were evicted for it; or full, and nothing has changed."""

    stored: bool
    evicted: tuple[Group, ...] = ()


FULL = PutOutcome(False)
ACCEPTED = PutOutcome(True)


def accepted(evicted: Sequence[Group]) -> PutOutcome:
    """Stored; `evicted` had to leave for it (the new group itself may be among them)."""
    return PutOutcome(True, tuple(evicted)) if evicted else ACCEPTED


@dataclass(frozen=True, slots=True)
class Taken:
    """Answer to a take: one group or none. Use `taken(group)` and `NOTHING`."""

    groups: tuple[Group, ...] = ()


NOTHING = Taken()


def taken(group: Group) -> Taken:
    return Taken((group,))


@dataclass(frozen=True)
class State:
    """A buffer's content. `extra` is the plugin's own, JSON-able."""

    groups: tuple[Group, ...]
    extra: Any = None


@dataclass(frozen=True)
class Restored:
    """Answer to a restore: the groups that did not fit."""

    left_out: tuple[Group, ...] = ()


@dataclass(frozen=True)
class BatchView:
    """An assembled batch as a batch filter sees it. Samples count through the groups in order."""

    groups: tuple[Group, ...]
    version: int


Mask: TypeAlias = NDArray[np.bool_]
"""bool[number of samples]: False leaves a sample out of the loss."""

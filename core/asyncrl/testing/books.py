"""A buffer with books beside it: what was put, what it holds, and how each group left."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from asyncrl.authoring import Plugin
from asyncrl.rollout.verdicts import PutOutcome, Restored, State, Taken
from asyncrl.samples import Group
from asyncrl.testing.groups import make_group, same_group
from asyncrl.testing.rules import expect

Key = Callable[[Group, float, int], Any]

ORDERS: dict[str, Key] = {
    "fifo": lambda group, score, arrival: arrival,
    "lifo": lambda group, score, arrival: -arrival,
    "freshest": lambda group, score, arrival: (-group.oldest_version, arrival),
    "oldest": lambda group, score, arrival: (group.oldest_version, arrival),
    "score": lambda group, score, arrival: (-score, arrival),
}
"""Orders that a buffer may promise, by the key of (group, score, number of its put); the lowest leaves first."""


def same_state(one: State, other: State) -> bool:
    """Whether two states hold the same groups in the same order, and the same beside them."""
    return (
        len(one.groups) == len(other.groups)
        and one.extra == other.extra
        and all(same_group(*pair) for pair in zip(one.groups, other.groups, strict=True))
    )


HOOKS = ("buffer_put", "buffer_take", "buffer_size", "buffer_state", "buffer_restore")


_ARGUMENTS: dict[type, dict[str, tuple[str, ...]]] = {}


def _arguments(kind: type[Plugin]) -> dict[str, tuple[str, ...]]:
    """Which arguments each hook of a class takes: an implementation may leave some out."""
    if kind not in _ARGUMENTS:
        _ARGUMENTS[kind] = {hook: tuple(inspect.signature(getattr(kind, hook)).parameters)[1:] for hook in HOOKS}
    return _ARGUMENTS[kind]


RULE = "test_no_group_is_lost_or_doubled"
"""Who speaks of answers that are none, and of groups that leave twice or never."""


class Books:
    """Puts and takes with the arguments that the plugin's methods have, as core calls them.

    Args:
        plugin: a buffer that a host accepts.
        strict: whether this is for the rule `RULE`; other rules are skipped where that one fails.

    Attributes:
        held: what the buffer holds by these books, by prompt id, in the order of arrival.
        ended: how each other group left: ``taken``, ``evicted`` or ``refused``.
    """

    def __init__(self, plugin: Plugin, *, strict: bool = False) -> None:
        self._strict = strict
        self._plugin: Any = plugin
        self._arguments = _arguments(type(plugin))
        self.held: dict[int, tuple[Group, float, int]] = {}
        self.ended: dict[int, str] = {}
        self.arrivals = 0

    def put(self, oldest: int = 0, score: float = 0.0) -> PutOutcome:
        """Offer a new group whose oldest version is `oldest`."""
        group = make_group(self.arrivals, oldest)
        self.arrivals += 1
        answer: Any = self._call("buffer_put", group=group, score=score)
        self._expect(
            isinstance(answer, PutOutcome) and not (answer.evicted and not answer.stored),
            promised="buffer_put answers ACCEPTED, accepted(evicted) or FULL",
            happened=lambda: f"it answered {answer!r}",
            fix="return one of these three, also where nothing was evicted",
        )
        outcome: PutOutcome = answer
        if not outcome.stored:
            self.ended[group.prompt_id] = "refused"
            return outcome
        self.held[group.prompt_id] = (group, score, group.prompt_id)
        for evicted in outcome.evicted:
            self._leaves(evicted, "evicted")
        return outcome

    def take(self, due: int = -1, version: int = 100) -> Group | None:
        """Take the next group."""
        answer = self._call("buffer_take", version=version, due=due)
        self._expect(
            isinstance(answer, Taken) and len(answer.groups) <= 1,
            promised="buffer_take answers taken(group) or NOTHING",
            happened=lambda: f"it answered {answer!r}",
            fix="return taken(group) with one group, or NOTHING, never None",
        )
        self._expect(
            answer.groups or not self.held,
            promised="a buffer that holds groups gives one when it is asked",
            happened=lambda: f"it answered NOTHING while it holds the groups of prompts {sorted(self.held)}",
            fix="hold no group back: whether one is too old is judged by core, and the trainer waits for nothing else",
        )
        if not answer.groups:
            return None
        self._leaves(answer.groups[0], "taken")
        group: Group = answer.groups[0]
        return group

    def first(self, key: Key, due: int = -1) -> Group | None:
        """Return the group that is first in an order, of those that are due if there are any."""
        due_now = [each for each in self.held.values() if each[0].oldest_version <= due]
        in_order = sorted(due_now or self.held.values(), key=lambda each: key(*each))
        return in_order[0][0] if in_order else None

    def size(self) -> int:
        size: int = self._call("buffer_size")
        return size

    def state(self) -> State:
        state: Any = self._call("buffer_state")
        self._expect(
            isinstance(state, State),
            promised="buffer_state answers State(groups, extra)",
            happened=lambda: f"it answered {state!r}",
            fix="return State(tuple of the groups held), and in `extra` what else restoring needs, as JSON data",
        )
        held: State = state
        return held

    def restore(self, state: State) -> Restored:
        restored: Any = self._call("buffer_restore", state=state)
        self._expect(
            isinstance(restored, Restored),
            promised="buffer_restore answers Restored(left_out)",
            happened=lambda: f"it answered {restored!r}",
            fix="return Restored() when all fits, else Restored(tuple of what does not)",
        )
        answer: Restored = restored
        return answer

    def _call(self, hook: str, **arguments: Any) -> Any:
        return getattr(self._plugin, hook)(**{name: arguments[name] for name in self._arguments[hook]})

    def _leaves(self, group: Group, how: str) -> None:
        known = self.held.pop(group.prompt_id, None)
        self._expect(
            known is not None,
            promised="a group leaves the buffer once, by being taken or by being evicted",
            happened=lambda: (
                f"the group of prompt {group.prompt_id} was {how}, which it does not hold: "
                f"it was {self.ended.get(group.prompt_id, 'never put')}"
            ),
            fix="remove a group from the storage in the same place in which it is handed out",
        )
        self._expect(
            known is not None and same_group(known[0], group),
            promised="what leaves the buffer is what was put into it",
            happened=f"the group of prompt {group.prompt_id} came back as another object with other content",
            fix="store groups as they are; they are immutable",
        )
        self.ended[group.prompt_id] = how

    def _expect(self, kept: object, **words: Any) -> None:
        if self._strict:
            expect(kept, **words)
        elif not kept:
            pytest.skip(f"{RULE} fails")

"""Buffer of finished groups that gives the freshest, the oldest or the best first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from asyncrl import (
    ACCEPTED,
    FULL,
    NOTHING,
    BufferOptions,
    Counter,
    Distribution,
    Group,
    MetricSet,
    Plugin,
    PutOutcome,
    Restored,
    RunFacts,
    State,
    Taken,
    accepted,
    hookimpl,
    taken,
)
from pydantic import Field

from asyncrl_priority.shelf import Held, Shelf

RANKS: dict[str, Callable[[Group, float], float]] = {
    "freshest": lambda group, score: -group.oldest_version,
    "oldest": lambda group, score: group.oldest_version,
    "score": lambda group, score: -score,
}
"""What each order sorts by; the lowest goes first."""


class PriorityOptions(BufferOptions):
    order: Literal["freshest", "oldest", "score"] = Field(
        "freshest",
        description="Which group goes first: the one with the newest oldest token, with the oldest one, or with the highest score, "
        "which some other plugin gives by the hook score_group. Equals go first in, first out; whatever the order, a group at its "
        "staleness deadline goes before all others. Without a staleness bound, freshest and score may keep a group for ever.",
    )
    when_full: Literal["wait", "evict"] = Field(
        "wait",
        description="Whether the producer waits when the buffer is full, or the group that is last in the order is dropped.",
    )


class PriorityMetrics(MetricSet):
    evicted = Counter(
        "Groups dropped from a full buffer: displaced by a better one, or not_admitted, being last itself",
        unit="groups",
        label="reason",
    )
    taken_due = Counter("Groups that went first because their staleness deadline had come", unit="groups")
    score = Distribution("Score of the groups that were put, with order = score", unit="score")


class Priority(Plugin):
    """Gives groups in an order; those at their deadline first."""

    hook_api = 1
    Options = PriorityOptions
    Metrics = PriorityMetrics

    def __init__(self, options: PriorityOptions, run: RunFacts) -> None:
        super().__init__(options, run)
        self._capacity = options.capacity(run.batch_size)
        self._evicts = options.when_full == "evict"
        self._by_score = options.order == "score"
        self._rank = RANKS[options.order]
        self._shelf = Shelf()
        self._arrivals = 0

    @property
    def needs(self) -> dict[str, str]:
        remedy = "choose a plugin that implements it, such as an observer of yours, or --buffer.order freshest"
        return {"score_group": remedy} if self._by_score else {}

    @hookimpl
    def buffer_put(self, group: Group, score: float) -> PutOutcome:
        full = len(self._shelf) >= self._capacity
        if full and not self._evicts:
            return FULL
        if self._by_score:
            self.metrics.score.observe(score)
        self._shelf.add(self._held(group, score))
        if not full:
            return ACCEPTED
        last = self._shelf.take_last()
        self.metrics.evicted.add(1, "not_admitted" if last is group else "displaced")
        return accepted([last])

    @hookimpl
    def buffer_take(self, version: int, due: int) -> Taken:
        if due >= 0 and (group := self._shelf.take_due(due)):
            self.metrics.taken_due.add()
            return taken(group)
        return taken(self._shelf.take_first()) if self._shelf else NOTHING

    @hookimpl
    def buffer_size(self) -> int:
        return len(self._shelf)

    @hookimpl
    def buffer_state(self) -> State:
        """Groups by arrival, as in any buffer, with ``{"scores": [one a group]}`` beside them."""
        held = self._shelf.by_arrival()
        return State(tuple(each.group for each in held), {"scores": [each.score for each in held]})

    @hookimpl
    def buffer_restore(self, state: State) -> Restored:
        """The best stay when not all fit. Groups from a buffer that keeps no scores have score 0."""
        extra = state.extra if isinstance(state.extra, dict) else {}
        scores = extra.get("scores", [0.0] * len(state.groups))
        ranked = sorted(self._held(group, score) for group, score in zip(state.groups, scores, strict=True))
        self._shelf = Shelf()
        for each in ranked[: self._capacity]:
            self._shelf.add(each)
        return Restored(tuple(each.group for each in ranked[self._capacity :]))

    def _held(self, group: Group, score: float) -> Held:
        self._arrivals += 1
        return Held(self._rank(group, score), self._arrivals, score, group)

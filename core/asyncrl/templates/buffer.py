"""The youngest group leaves first, and a full buffer hands the oldest one back."""

from __future__ import annotations

from bisect import bisect_left

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


class TemplateNameOptions(BufferOptions):
    evict: bool = Field(True, description="Whether a full buffer hands its oldest group back; if not, the producer waits.")


class TemplateNameMetrics(MetricSet):
    age = Distribution("Versions by which a group that was taken is older than the trainer's", unit="versions")
    evicted = Counter("Groups handed back by a full buffer", unit="groups")


class TemplateName(Plugin):
    """Storage and order only: waiting, judging and the books are core's."""

    hook_api = 1
    Options = TemplateNameOptions
    Metrics = TemplateNameMetrics
    options: TemplateNameOptions
    metrics: TemplateNameMetrics

    def __init__(self, options: TemplateNameOptions, run: RunFacts) -> None:
        super().__init__(options, run)
        self._capacity = options.capacity(run.batch_size)
        self._groups: list[Group] = []  # the oldest first; of equals, the one that came last

    @hookimpl
    def buffer_put(self, group: Group) -> PutOutcome:
        full = len(self._groups) >= self._capacity
        if full and not self.options.evict:
            return FULL
        at = bisect_left(self._groups, group.oldest_version, key=lambda held: held.oldest_version)
        self._groups.insert(at, group)
        if not full:
            return ACCEPTED
        self.metrics.evicted.add()
        return accepted([self._groups.pop(0)])

    @hookimpl
    def buffer_take(self, version: int, due: int) -> Taken:
        if not self._groups:
            return NOTHING
        # What is due goes first: no later step may train it.
        group = self._groups.pop(0 if self._groups[0].oldest_version <= due else -1)
        self.metrics.age.observe(group.staleness(version))
        return taken(group)

    @hookimpl
    def buffer_size(self) -> int:
        return len(self._groups)

    @hookimpl
    def buffer_state(self) -> State:
        return State(tuple(self._groups))

    @hookimpl
    def buffer_restore(self, state: State) -> Restored:
        beyond = max(0, len(state.groups) - self._capacity)
        self._groups = list(state.groups[beyond:])
        return Restored(state.groups[:beyond])

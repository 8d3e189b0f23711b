"""Buffers that break one rule each."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from asyncrl import (
    ACCEPTED,
    FULL,
    NOTHING,
    BufferOptions,
    Group,
    Plugin,
    PutOutcome,
    Restored,
    RunFacts,
    State,
    Taken,
    hookimpl,
    taken,
)

from broken.breaking import breaks


@breaks("", order="fifo")
class Right(Plugin):
    Options = BufferOptions

    def __init__(self, options: BufferOptions, run: RunFacts) -> None:
        super().__init__(options, run)
        self.capacity = options.capacity(run.batch_size)
        self.groups: deque[Group] = deque()

    @hookimpl
    def buffer_put(self, group: Group) -> PutOutcome:
        return self.full() if len(self.groups) >= self.capacity else self.store(group)

    def full(self) -> PutOutcome:
        return FULL

    def store(self, group: Group) -> PutOutcome:
        self.groups.append(group)
        return ACCEPTED

    @hookimpl
    def buffer_take(self, due: int) -> Taken:
        for group in self.groups:
            if group.oldest_version <= due:
                self.groups.remove(group)
                return taken(group)
        return taken(self.first()) if self.groups else NOTHING

    def first(self) -> Group:
        return self.groups.popleft()

    @hookimpl
    def buffer_size(self) -> int:
        return len(self.groups)

    @hookimpl
    def buffer_state(self) -> State:
        return State(tuple(self.groups))

    @hookimpl
    def buffer_restore(self, state: State) -> Restored:
        self.groups = deque(state.groups[: self.capacity])
        return Restored(state.groups[self.capacity :])


@breaks("test_no_group_is_lost_or_doubled")
class KeepsTheLastOne(Right):
    @hookimpl
    def buffer_take(self, due: int) -> Taken:
        return NOTHING if len(self.groups) == 1 else super().buffer_take(due)


@breaks("test_no_group_is_lost_or_doubled")
class AnswersNone(Right):
    @hookimpl
    def buffer_restore(self, state: State) -> Restored:
        return super().buffer_restore(state) if state.groups else None  # type: ignore[return-value]


@breaks("test_its_size_is_what_it_holds")
class CountsDueGroupsFurther(Right):
    gone = 0

    @hookimpl
    def buffer_take(self, due: int) -> Taken:
        answer = super().buffer_take(due)
        self.gone += bool(answer.groups and due >= 0)
        return answer

    @hookimpl
    def buffer_size(self) -> int:
        return len(self.groups) + self.gone


@breaks("test_groups_leave_in_the_promised_order", order="fifo")
class LastInFirstOut(Right):
    def first(self) -> Group:
        return self.groups.pop()


@breaks("test_what_is_due_leaves_first")
class ForgetsWhatIsDue(Right):
    @hookimpl
    def buffer_take(self, due: int) -> Taken:
        return super().buffer_take(-1)


@breaks("test_it_holds_no_more_than_its_capacity")
class TakesOneMore(Right):
    @hookimpl
    def buffer_put(self, group: Group) -> PutOutcome:
        return FULL if len(self.groups) > self.capacity else self.store(group)


@breaks("test_it_holds_no_more_than_its_capacity")
class RefusesTooEarly(Right):
    @hookimpl
    def buffer_put(self, group: Group) -> PutOutcome:
        return FULL if len(self.groups) >= self.capacity - 1 else self.store(group)


@breaks("test_full_changes_nothing")
class RotatesWhenFull(Right):
    def full(self) -> PutOutcome:
        self.groups.rotate(1)
        return FULL


@breaks("test_its_state_restores_it_exactly")
class RestoresBackwards(Right):
    @hookimpl
    def buffer_restore(self, state: State) -> Restored:
        answer = super().buffer_restore(state)
        self.groups.reverse()
        return answer


@breaks("test_reading_its_state_changes_nothing")
class RotatesWhenRead(Right):
    @hookimpl
    def buffer_state(self) -> State:
        state = super().buffer_state()
        if len(self.groups) < self.capacity:
            self.groups.rotate(1)
        return state


@breaks("test_a_smaller_buffer_hands_back_what_does_not_fit")
class RestoresTooMuch(Right):
    @hookimpl
    def buffer_restore(self, state: State) -> Restored:
        self.groups = deque(state.groups)
        return Restored()


@breaks("test_two_of_it_share_nothing")
class Shares(Right):
    shared: deque[Group]

    def __init__(self, options: BufferOptions, run: RunFacts) -> None:
        Shares.shared = deque()
        super().__init__(options, run)

    @property
    def groups(self) -> Any:
        return Shares.shared

    @groups.setter
    def groups(self, groups: Any) -> None:
        Shares.shared = groups


@breaks("test_a_cancelled_take_loses_nothing")
class FetchesAheadForWhoAsks(Right):
    """Keeps the next group ready for the asyncio task that asks, and forgets it with the task."""

    def __init__(self, options: BufferOptions, run: RunFacts) -> None:
        super().__init__(options, run)
        self.ready: dict[Any, Group] = {}

    @hookimpl
    def buffer_take(self, due: int) -> Taken:
        try:
            task = asyncio.current_task()
        except RuntimeError:  # no loop, as in a plain test
            return super().buffer_take(due)
        self.ready = {asker: group for asker, group in self.ready.items() if not asker.done()}
        answer = taken(self.ready.pop(task)) if task in self.ready else super().buffer_take(due)
        if self.groups:
            self.ready[task] = self.groups.popleft()
        return answer

    @hookimpl
    def buffer_size(self) -> int:
        return len(self.groups) + len(self.ready)


@breaks("test_a_run_with_faults_balances_its_books")
class TakesEachPromptOnce(Right):
    """Thinks that a prompt that comes again is a mistake."""

    def __init__(self, options: BufferOptions, run: RunFacts) -> None:
        super().__init__(options, run)
        self.known: set[int] = set()

    def store(self, group: Group) -> PutOutcome:
        if group.prompt_id not in self.known:
            self.known.add(group.prompt_id)
            self.groups.append(group)
        return ACCEPTED

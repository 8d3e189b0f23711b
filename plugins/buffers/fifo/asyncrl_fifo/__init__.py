"""First in, first out buffer of finished groups."""

from __future__ import annotations

from collections import deque

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


class Fifo(Plugin):
    """Gives groups in the order in which they finished; evicts nothing."""

    hook_api = 1
    Options = BufferOptions

    def __init__(self, options: BufferOptions, run: RunFacts) -> None:
        super().__init__(options, run)
        self._capacity = options.capacity(run.batch_size)
        self._groups: deque[Group] = deque()
        self._none_below = 0  # no group held has an older version than this

    @hookimpl
    def buffer_put(self, group: Group) -> PutOutcome:
        if len(self._groups) >= self._capacity:
            return FULL
        self._groups.append(group)
        if group.oldest_version < self._none_below:
            self._none_below = group.oldest_version
        return ACCEPTED

    @hookimpl
    def buffer_take(self, version: int, due: int) -> Taken:
        if 0 <= due >= self._none_below:
            for index, group in enumerate(self._groups):
                if group.oldest_version <= due:
                    del self._groups[index]
                    return taken(group)
            self._none_below = due + 1
        return taken(self._groups.popleft()) if self._groups else NOTHING

    @hookimpl
    def buffer_size(self) -> int:
        return len(self._groups)

    @hookimpl
    def buffer_state(self) -> State:
        return State(tuple(self._groups))

    @hookimpl
    def buffer_restore(self, state: State) -> Restored:
        self._groups = deque(state.groups[: self._capacity])
        self._none_below = 0
        return Restored(state.groups[self._capacity :])

"""Records the lengths, times and rewards of finished groups in the rollout actor, for the run's `trace.jsonl`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import asyncrl
from asyncrl.authoring import Plugin, PluginOptions, RunFacts
from asyncrl.hookspecs import hookimpl
from asyncrl.host import Active, Host
from asyncrl.samples import Group

Recorded: TypeAlias = tuple[int, tuple[int, ...], tuple[float, ...], tuple[float, ...]]
"""Prompt id, and for each sample its tokens, slot seconds (none where they are unknown) and reward."""

PAUSES_KEPT = 1024
"""So many publications may a sample span for all of their pauses to be taken from its time."""


def produced_again(recorded: Iterable[int], ledger: Mapping[str, Any]) -> frozenset[int]:
    """Return, of the prompts that were recorded, those that may be produced once more: they are open in this `Ledger.state`."""
    return frozenset(recorded) & {prompt_id for prompt_id, _ in ledger["open"]}


class Recorder(Plugin):
    """An observer of core's own. What it holds is taken at each poll, and it stops for good after `limit` groups.

    Args:
        recorded: groups that were recorded by others before it.
        traced: prompts among them that are produced once more should their groups be lost: they are not recorded again.

    Attributes:
        paused_seconds: for which the engines have stood still for publications so far.
        recorded: groups so far.
    """

    def __init__(self, run: RunFacts, limit: int, recorded: int = 0, traced: Iterable[int] = ()) -> None:
        super().__init__(PluginOptions(), run)
        self.paused_seconds = 0.0
        self.recorded = recorded
        self._left = max(0, limit - recorded)
        self._traced = set(traced)
        self._finished: list[Recorded] = []
        self._pauses: deque[tuple[float, float]] = deque(maxlen=PAUSES_KEPT)

    def observing(self, host: Host) -> Host:
        """Return the host with this observer in it, unless it has nothing to record."""
        if not self._left:
            return host
        return Host([*host.actives, Active("observers", "recorder", "asyncrl-core", asyncrl.__version__, self)], host.trace)

    @hookimpl
    def on_group_finished(self, group: Group) -> None:
        if not self._left:
            return
        if group.prompt_id in self._traced:
            self._traced.discard(group.prompt_id)
            return
        self._left -= 1
        self.recorded += 1
        tokens = tuple([len(sample.token_ids) for sample in group.samples])
        rewards = tuple([sample.reward for sample in group.samples])
        self._finished.append((group.prompt_id, tokens, self._without_pauses(group.seconds), rewards))

    def take(self) -> list[Recorded]:
        """Return what has finished since the last call."""
        taken, self._finished = self._finished, []
        return taken

    @contextmanager
    def pause(self) -> Iterator[None]:
        """The engines stand still for a publication. It is booked as the publication's time, not as that of the samples in flight."""
        begin = asyncio.get_running_loop().time()
        try:
            yield
        finally:
            end = asyncio.get_running_loop().time()
            self._pauses.append((begin, end))
            self.paused_seconds += end - begin

    def _without_pauses(self, seconds: Sequence[float]) -> tuple[float, ...]:
        """Take the pauses out of the times of a group that has finished just now."""
        if not seconds or not self._pauses:
            return tuple(seconds)
        start = asyncio.get_running_loop().time() - max(seconds)
        spanned = []
        for begin, end in reversed(self._pauses):
            if end <= start:
                break
            spanned.append((max(begin - start, 0.0), end - start))
        if not spanned:
            return tuple(seconds)
        return tuple(held - sum(min(end, held) - begin for begin, end in spanned if begin < held) for held in seconds)

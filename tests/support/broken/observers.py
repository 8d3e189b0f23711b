"""Observers that break one rule each."""

from __future__ import annotations

from collections.abc import Generator

from asyncrl import EvalRecord, LoadView, Plugin, RunFacts, hookimpl

from broken.breaking import breaks


@breaks("")
class Right(Plugin):
    fates: int = 0

    @hookimpl
    def on_group_ended(self, prompt_id: int, fate: str, tokens: int) -> None:
        self.fates += 1


@breaks("test_it_watches_something")
class WatchesNothing(Plugin):
    @hookimpl
    def check_run(self, run: RunFacts) -> None: ...


@breaks("test_it_raises_nothing_in_a_run")
class KnowsNoSkips(Right):
    @hookimpl
    def on_eval(self, record: EvalRecord) -> None:
        next(iter(record.sets.values()))


@breaks("test_the_run_is_the_same_without_it")
class SlowsTheRunDown(Right):
    @hookimpl(wrapper=True)
    def submission_quota(self, load: LoadView) -> Generator[None, int, int]:
        granted = yield
        return 0 if load.samples_in_flight else granted

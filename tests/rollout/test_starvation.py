"""An order of the buffer's never costs a group that the staleness bound would still allow."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import pytest
from asyncrl import Group, Plugin, PluginOptions, PutOutcome, RunFacts, Taken, hookimpl
from asyncrl.simulation.run import SimulatedRun
from asyncrl_priority import Priority
from simulated import facts, host, long_tail, oldest_age, simulate

BOUND = 4


@dataclass(frozen=True)
class Take:
    """One take from the buffer: for which version, what it gave, and what was held before ({prompt id: oldest version})."""

    version: int
    group: Group
    held: dict[int, int]


class Watch(Plugin):
    """What the buffer held at each of its takes, and who was too old."""

    def __init__(self, options: PluginOptions, run: RunFacts) -> None:
        super().__init__(options, run)
        self.held: dict[int, int] = {}
        self.takes: list[Take] = []
        self.ended: dict[int, str] = {}

    @hookimpl(wrapper=True)
    def buffer_put(self, group: Group) -> Generator[None, PutOutcome, PutOutcome]:
        outcome = yield
        if outcome.stored:
            self.held[group.prompt_id] = group.oldest_version
        for evicted in outcome.evicted:
            del self.held[evicted.prompt_id]
        return outcome

    @hookimpl(wrapper=True)
    def buffer_take(self, version: int) -> Generator[None, Taken, Taken]:
        before = dict(self.held)
        answer = yield
        for group in answer.groups:
            self.takes.append(Take(version, group, before))
            del self.held[group.prompt_id]
        return answer

    @hookimpl
    def on_group_ended(self, prompt_id: int, fate: str, tokens: int) -> None:
        self.ended[prompt_id] = fate

    def left_behind(self, bound: int) -> dict[int, list[Take]]:
        """The takes of the last batch that could still have trained a group which was held by then and ended as stale."""
        lost: dict[int, list[Take]] = {}
        for take in self.takes:
            for prompt_id, oldest in take.held.items():
                if oldest + bound == take.version and self.ended.get(prompt_id) == "stale":
                    lost.setdefault(prompt_id, []).append(take)
        return lost

    def passed_over(self, bound: int) -> set[int]:
        """Groups left behind although a place went to one that could have waited."""
        return {
            prompt_id
            for prompt_id, takes in self.left_behind(bound).items()
            if any(take.group.oldest_version + bound > take.version for take in takes)
        }


class Deaf(Priority):
    """Would rather follow its order than listen to what is due."""

    def buffer_take(self, version: int) -> Taken:
        return super().buffer_take(version, -1)

    buffer_take = hookimpl(buffer_take)


def now_and_then_slow(step: int) -> float:
    return 6.0 if step % 3 == 2 else 0.1


def watched(
    *plugins: tuple[str, str | type[Plugin], dict[str, Any]],
    samples: int = 8,
    train_seconds: Callable[[int], float] = now_and_then_slow,
) -> tuple[SimulatedRun, Watch]:
    run = facts(steps=60, max_concurrent_samples=samples)
    plugged = host(run, *plugins, ("observers", Watch, {}))
    return simulate(run, plugged, script=long_tail(3), train_seconds=train_seconds), plugged.plugin("observers")


def max_gap(**options: Any) -> tuple[str, str, dict[str, Any]]:
    return ("staleness", "max-gap", {"max_staleness": BOUND, **options})


def test_freshest_first_loses_no_group_that_was_buffered_before_its_deadline() -> None:
    """A buffer that ignores what is due loses some in the same run."""
    _, ours = watched(("buffer", "priority", {}), max_gap())
    _, deaf = watched(("buffer", Deaf, {}), max_gap())
    assert not ours.left_behind(BOUND)
    assert len(deaf.passed_over(BOUND)) > 10


@pytest.mark.parametrize("order", ["freshest", "oldest", "score"])
@pytest.mark.parametrize(("samples", "capacity_factor"), [(12, 2.0), (16, 4.0)])
def test_when_more_is_due_than_a_batch_holds_the_batch_is_full_of_it(
    order: str, samples: int, capacity_factor: float, caplog: pytest.LogCaptureFixture
) -> None:
    """Twice as much is generated as trained, so something must go; no place goes to a group that could have waited."""
    caplog.set_level(logging.ERROR)
    buffer = ("buffer", "priority", {"order": order, "capacity_factor": capacity_factor})
    run, watch = watched(buffer, max_gap(), samples=samples)
    assert oldest_age(run) <= BOUND
    assert watch.left_behind(BOUND)
    assert not watch.passed_over(BOUND)


@pytest.mark.parametrize("order", ["freshest", "oldest", "score"])
def test_with_paced_and_waiting_nothing_is_refused_whatever_the_order(order: str) -> None:
    run, watch = watched(
        ("buffer", "priority", {"order": order}), ("scheduler", "paced", {}), max_gap(on_stale="wait"), samples=16
    )
    assert run.service.books()["dropped"] == {}
    assert oldest_age(run) <= BOUND
    assert len(watch.takes) == 240


def test_without_a_bound_freshest_first_keeps_old_groups_for_good() -> None:
    """By design: nothing says that they should leave. They are booked as unfinished."""
    run, watch = watched(("buffer", "priority", {}), samples=16)
    assert min(watch.held.values()) == 0
    assert run.service.books()["dropped"] == {}
    assert run.service.books()["unfinished"] >= len(watch.held)


def test_without_a_bound_evicting_drops_the_oldest_instead_and_books_it() -> None:
    run, watch = watched(("buffer", "priority", {"when_full": "evict"}), samples=16)
    assert min(watch.held.values()) > 50
    books = run.service.books()
    evicted = sorted(prompt_id for prompt_id, fate in watch.ended.items() if fate == "evicted")
    assert books["dropped"] == {"evicted": len(evicted)} and evicted
    assert books["issued"] == books["trained"] + len(evicted) + books["unfinished"]

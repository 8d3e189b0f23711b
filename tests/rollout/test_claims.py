"""Claims keep places of a batch free exactly as long as a group with an earlier deadline needs them."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from asyncrl import KEEP, Deadline, Group, Plugin, Verdict, hookimpl
from asyncrl.errors import PluginFailed
from asyncrl.rollout.claims import ANY, Call, Claims
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import facts, host


def claims(bound: int = 2, on_stale: str = "wait", batch_size: int = 2, **changes: Any) -> Claims:
    run = facts(batch_size=batch_size, **{"steps": 100, **changes})
    return Claims(host(run, ("staleness", "max-gap", {"max_staleness": bound, "on_stale": on_stale})), run)


def test_without_a_deadline_any_group_may_go_next() -> None:
    run = facts()
    without = Claims(host(run), run)
    without.started(0)
    assert without.call(7, 1, {0: 4}, ()) == ANY
    assert without.batches_to_deadline(0) == run.steps


def test_a_group_at_its_deadline_goes_first_and_the_rest_of_the_batch_is_free() -> None:
    assert claims().call(version=5, room=2, held={3: 1, 5: 4}, waiting=()) == Call(due=3)


def test_the_last_places_are_kept_for_groups_in_flight_at_their_deadline() -> None:
    kept = claims()
    kept.started(3)
    assert kept.call(5, 2, {5: 4}, ()) == Call(due=3)
    assert kept.call(5, 1, {5: 4}, ()) == Call(due=3, only=True)
    kept.ended(3)
    assert kept.call(5, 1, {5: 4}, ()) == Call(due=3)


def test_places_are_kept_for_a_later_deadline_whose_batches_would_not_suffice() -> None:
    """Three groups of version 4 are due by version 6; the batches of versions 5 and 6 have four places."""
    kept = claims()
    for _ in range(3):
        kept.started(4)
    assert kept.call(5, 2, {5: 2}, ()) == Call(due=3)
    assert kept.call(5, 1, {5: 2}, ()) == Call(due=4, only=True)


def test_a_group_that_is_too_late_in_flight_is_not_waited_for() -> None:
    kept = claims()
    kept.started(2)
    assert not kept.call(5, 1, {5: 1}, ()).only


def test_the_last_batch_of_the_run_waits_for_nobody() -> None:
    kept = claims()
    kept.started(3)
    kept.steps_left = 1
    assert not kept.call(5, 1, {5: 1}, ()).only


def test_finished_groups_at_a_full_buffer_count() -> None:
    assert claims().call(5, 1, {5: 4}, (3,)) == Call(due=3, only=True)


@pytest.mark.parametrize("on_stale", ["drop", "retry"])
def test_a_policy_that_does_not_wait_has_only_an_order(on_stale: str) -> None:
    without = claims(on_stale=on_stale)
    without.started(3)
    assert without.call(5, 1, {3: 1, 5: 4}, ()) == Call(due=3)
    assert without.call(5, 1, {5: 4}, ()) == Call(due=3)


@pytest.mark.parametrize(
    ("interval", "left_of_version", "steps_left", "batches"), [(1, 1, 100, 3), (1, 0, 100, 2), (4, 3, 100, 11), (1, 1, 2, 2)]
)
def test_batches_to_the_deadline_end_with_the_run(interval: int, left_of_version: int, steps_left: int, batches: int) -> None:
    counted = claims(publish_interval=interval)
    counted.batches_of_version, counted.steps_left = left_of_version, steps_left
    assert counted.batches_to_deadline(41) == batches


@pytest.mark.parametrize("answer", [None, 3, Deadline(1)])
def test_a_deadline_that_makes_no_sense_is_the_policys_fault(answer: Any) -> None:
    class Odd(Plugin):
        @hookimpl
        def judge_staleness(self, group: Group, version: int) -> Verdict:
            return KEEP

        @hookimpl
        def staleness_deadline(self, oldest: int) -> Deadline:
            return answer  # type: ignore[no-any-return]

    run = facts()
    with pytest.raises(PluginFailed, match=r"staleness plugin 'Odd'.*answered staleness_deadline\(2\) with"):
        Claims(host(run, ("staleness", Odd, {})), run).batches_to_deadline(2)


@settings(max_examples=300, derandomize=True, deadline=None)
@given(
    seed=st.integers(0, 100_000),
    bound=st.integers(0, 4),
    batch_size=st.integers(1, 5),
    interval=st.integers(1, 3),
    eager=st.floats(0.0, 1.0),
)
def test_admitted_groups_all_find_a_place_in_time_whatever_the_order_in_which_they_finish(
    seed: int, bound: int, batch_size: int, interval: int, eager: float
) -> None:
    """A trainer without a clock: groups are admitted as `paced` does, finish in any order, and are placed as the claims allow."""
    rng = random.Random(seed)
    book = claims(bound, batch_size=batch_size, publish_interval=interval, steps=10_000)
    running: list[int] = []
    held: Counter[int] = Counter()
    batch: list[int] = []
    for step in range(1, 40):
        version = (step - 1) // interval
        book.batches_of_version, book.steps_left = interval - (step - 1) % interval, 10_000 - step + 1
        while len(batch) < batch_size:
            room = book.batches_to_deadline(version) * batch_size - len(running) - held.total() - len(batch)
            assert room >= 0
            for _ in range(room if rng.random() < eager or not running else 0):
                running.append(version)
                book.started(version)
            call = book.call(version, batch_size - len(batch), +held, ())
            due = [oldest for oldest in held if held[oldest] and oldest <= call.due]
            free = [] if call.only else [oldest for oldest in held if held[oldest]]
            if candidates := due or free:
                oldest = rng.choice(candidates)
                held[oldest] -= 1
                batch.append(oldest)
            else:
                assert running, "nothing may go next, and nothing is in flight"
                finished = running.pop(rng.randrange(len(running)))
                book.ended(finished)
                held[finished] += 1
        assert version - min(batch) <= bound
        batch.clear()

"""`priority` gives what is due first, then the freshest, the oldest or the best, and evicts only what is last."""

from __future__ import annotations

import json

import numpy as np
import pytest
from asyncrl import ACCEPTED, FULL, NOTHING, Group, Prompt, RunFacts, Sample, State, Status, accepted, full_mask
from asyncrl_priority import Priority

RUN = RunFacts(batch_size=2, group_size=1, max_concurrent_samples=2, steps=1)
TOKENS = np.zeros(1, np.int32)


def group(prompt_id: int, version: int) -> Group:
    sample = Sample(TOKENS, np.zeros(1, np.float32), full_mask(1), ((version, 1),), Status.COMPLETED)
    return Group(Prompt(prompt_id, TOKENS), (sample,))


def filled(order: str, *held: tuple[int, float], when_full: str = "wait", capacity_factor: float = 4.0) -> Priority:
    """Return a buffer into which groups 0, 1, 2, … of these (version, score) were put."""
    options = Priority.Options(order=order, when_full=when_full, capacity_factor=capacity_factor)
    buffer = Priority(options, RUN)
    for prompt_id, (version, score) in enumerate(held):
        buffer.buffer_put(group(prompt_id, version), score)
    return buffer


def take(buffer: Priority, due: int = -1) -> int:
    return buffer.buffer_take(9, due).groups[0].prompt_id


def drain(buffer: Priority) -> list[int]:
    return [take(buffer) for _ in range(buffer.buffer_size())]


HELD = ((3, 0.5), (5, 0.1), (3, 2.0), (5, 0.5), (4, -1.0))


@pytest.mark.parametrize(
    ("order", "leave"), [("freshest", [1, 3, 4, 0, 2]), ("oldest", [0, 2, 4, 1, 3]), ("score", [2, 0, 3, 1, 4])]
)
def test_groups_leave_in_their_order_and_equals_first_in_first_out(order: str, leave: list[int]) -> None:
    buffer = filled(order, *HELD)
    assert drain(buffer) == leave
    assert buffer.buffer_take(9, -1) is buffer.buffer_take(9, 9) is NOTHING


@pytest.mark.parametrize(("order", "first"), [("freshest", [4, 0, 2, 1]), ("oldest", [0, 2, 4, 1]), ("score", [2, 0, 4, 3])])
def test_groups_that_are_due_leave_before_all_others_in_their_order(order: str, first: list[int]) -> None:
    buffer = filled(order, *HELD)
    assert [take(buffer, due=4) for _ in range(4)] == first
    assert buffer.metrics.taken_due.drain() == {"": 3}


def test_a_full_buffer_says_so_and_keeps_what_it_has() -> None:
    buffer = filled("score", (1, 1.0), (1, 2.0), capacity_factor=1.0)
    assert buffer.buffer_put(group(2, 1), 9.0) is FULL
    assert drain(buffer) == [1, 0]


@pytest.mark.parametrize(("order", "version", "score"), [("freshest", 5, 0.0), ("oldest", 2, 0.0), ("score", 0, 1.5)])
def test_a_full_buffer_may_evict_its_last_for_a_better_one(order: str, version: int, score: float) -> None:
    buffer = filled(order, (3, 1.0), (4, 2.0), when_full="evict", capacity_factor=1.0)
    evicted = buffer.buffer_put(group(2, version), score).evicted
    assert [each.prompt_id for each in evicted] == [1 if order == "oldest" else 0]
    assert buffer.buffer_size() == 2
    assert buffer.metrics.evicted.drain() == {"displaced": 1}


@pytest.mark.parametrize(("order", "version", "score"), [("freshest", 3, 9.0), ("oldest", 4, 9.0), ("score", 9, 1.0)])
def test_a_new_group_that_is_last_itself_is_handed_back(order: str, version: int, score: float) -> None:
    """Among equals the one that came last is last."""
    buffer = filled(order, (3, 1.0), (4, 2.0), when_full="evict", capacity_factor=1.0)
    new = group(2, version)
    assert buffer.buffer_put(new, score) == accepted([new])
    assert sorted(drain(buffer)) == [0, 1]


def test_a_buffer_that_may_evict_takes_what_fits() -> None:
    buffer = filled("freshest", (3, 0.0), when_full="evict", capacity_factor=1.0)
    assert buffer.buffer_put(group(1, 0), 0.0) is ACCEPTED


@pytest.mark.parametrize("order", ["freshest", "oldest", "score"])
def test_a_restored_buffer_goes_on_where_the_other_stopped(order: str) -> None:
    buffer = filled(order, *HELD)
    state = buffer.buffer_state()
    other = filled(order, (1, 1.0))
    assert other.buffer_restore(State(state.groups, json.loads(json.dumps(state.extra)))).left_out == ()
    assert other.buffer_state() == state
    for each in (buffer, other):
        each.buffer_put(group(5, 3), 0.5)
    assert drain(other) == drain(buffer)


@pytest.mark.parametrize(("order", "kept"), [("freshest", [1, 3]), ("oldest", [0, 2]), ("score", [2, 0])])
def test_a_smaller_buffer_keeps_the_best(order: str, kept: list[int]) -> None:
    small = filled(order, capacity_factor=1.0)
    left_out = small.buffer_restore(filled(order, *HELD).buffer_state()).left_out
    assert drain(small) == kept
    assert sorted([*kept, *(each.prompt_id for each in left_out)]) == [0, 1, 2, 3, 4]


def test_the_order_may_change_with_a_restore() -> None:
    other = filled("score")
    other.buffer_restore(filled("freshest", *HELD).buffer_state())
    assert drain(other) == [2, 0, 3, 1, 4]


def test_the_state_of_a_buffer_without_scores_is_taken_as_it_is() -> None:
    buffer = filled("score")
    buffer.buffer_restore(State((group(0, 1), group(1, 2))))
    assert drain(buffer) == [0, 1]


def test_a_score_is_needed_only_where_it_orders() -> None:
    assert filled("score").needs.keys() == {"score_group"}
    assert filled("freshest").needs == filled("oldest").needs == {}

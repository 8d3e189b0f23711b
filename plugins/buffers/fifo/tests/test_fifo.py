"""`fifo` gives groups in the order in which it was given them, and never more than fit."""

from __future__ import annotations

import numpy as np
import pytest
from asyncrl import ACCEPTED, FULL, NOTHING, Group, Prompt, RunFacts, Sample, Status, full_mask
from asyncrl_fifo import Fifo
from pydantic import ValidationError

RUN = RunFacts(batch_size=2, group_size=1, max_concurrent_samples=2, steps=1)


def group(prompt_id: int, version: int = 0) -> Group:
    tokens = np.zeros(1, np.int32)
    sample = Sample(tokens, np.zeros(1, np.float32), full_mask(1), ((version, 1),), Status.COMPLETED)
    return Group(Prompt(prompt_id, tokens), (sample,))


def filled(count: int, capacity_factor: float = 2.0) -> Fifo:
    buffer = Fifo(Fifo.Options(capacity_factor=capacity_factor), RUN)
    for prompt_id in range(count):
        buffer.buffer_put(group(prompt_id))
    return buffer


def test_groups_leave_in_the_order_in_which_they_came() -> None:
    buffer = filled(3)
    assert [buffer.buffer_take(0, -1).groups[0].prompt_id for _ in range(3)] == [0, 1, 2]
    assert buffer.buffer_take(0, -1) is NOTHING


def test_groups_that_are_due_leave_first_also_when_they_came_late() -> None:
    buffer = filled(0, 4.0)
    for prompt_id, version in enumerate([3, 3, 2, 1, 3, 1]):
        buffer.buffer_put(group(prompt_id, version))
    assert [buffer.buffer_take(4, due).groups[0].prompt_id for due in (0, 1, 1, 1, 2)] == [0, 3, 5, 1, 2]
    buffer.buffer_put(group(6, 0))
    assert [buffer.buffer_take(4, due).groups[0].prompt_id for due in (0, 0)] == [6, 4]


def test_a_full_buffer_says_so_and_keeps_what_it_has() -> None:
    buffer = filled(3)
    assert buffer.buffer_put(group(3)) is ACCEPTED
    assert buffer.buffer_put(group(4)) is FULL
    assert buffer.buffer_size() == 4


@pytest.mark.parametrize(("factor", "capacity"), [(1.0, 2), (1.6, 3), (2.0, 4)])
def test_capacity_is_a_number_of_batches(factor: float, capacity: int) -> None:
    assert filled(10, factor).buffer_size() == capacity


def test_a_capacity_below_one_batch_is_refused() -> None:
    with pytest.raises(ValidationError):
        Fifo.Options(capacity_factor=0.9)


def test_a_restored_buffer_goes_on_where_the_other_stopped() -> None:
    state = filled(4).buffer_state()
    other = filled(1)
    assert other.buffer_restore(state).left_out == ()
    assert [other.buffer_take(0, -1).groups[0].prompt_id for _ in range(4)] == [0, 1, 2, 3]


def test_a_smaller_buffer_hands_back_what_does_not_fit() -> None:
    state = filled(4).buffer_state()
    small = filled(0, 1.0)
    assert [each.prompt_id for each in small.buffer_restore(state).left_out] == [2, 3]
    assert small.buffer_size() == 2

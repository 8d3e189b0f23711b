"""`sample` counts free sample slots, whichever groups they came from."""

from __future__ import annotations

from typing import Any

import pytest
from asyncrl import LoadView, PluginOptions, RunFacts
from asyncrl_sample import SampleScheduler

RUN = RunFacts(batch_size=3, group_size=4, max_concurrent_samples=16, steps=5)


def load(**changes: Any) -> LoadView:
    idle = {
        "group_size": 4,
        "batch_size": 3,
        "max_concurrent_samples": 16,
        "samples_in_flight": 0,
        "groups_in_flight": 0,
        "groups_buffered": 0,
        "groups_in_batch": 0,
        "groups_trained": 0,
        "groups_issued": 0,
        "trainer_waiting": False,
        "version": 0,
        "steps_left": 5,
        "batches_to_deadline": 5,
    }
    return LoadView(**(idle | changes))


@pytest.mark.parametrize(("in_flight", "quota"), [(0, 4), (12, 1), (13, 0), (16, 0), (9, 1), (8, 2)])
def test_a_group_starts_once_group_size_slots_are_free(in_flight: int, quota: int) -> None:
    scheduler = SampleScheduler(PluginOptions(), RUN)
    assert scheduler.submission_quota(load(samples_in_flight=in_flight, groups_in_flight=7)) == quota


def test_it_generates_while_the_trainer_trains() -> None:
    assert not SampleScheduler.synchronous

"""`lockstep` starts what the current batch lacks, and only while the trainer waits for it."""

from __future__ import annotations

from typing import Any

import pytest
from asyncrl import LoadView, PluginOptions, RunFacts
from asyncrl_lockstep import Lockstep

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


@pytest.mark.parametrize(
    ("counts", "quota"),
    [
        ({}, 3),
        ({"groups_in_flight": 3}, 0),
        ({"groups_in_flight": 1, "groups_buffered": 1}, 1),
        ({"groups_in_batch": 2}, 1),
        ({"groups_in_batch": 3, "groups_buffered": 2}, 0),
    ],
)
def test_the_quota_is_what_the_batch_lacks(counts: dict[str, int], quota: int) -> None:
    scheduler = Lockstep(PluginOptions(), RUN)
    assert scheduler.submission_quota(load(trainer_waiting=True, **counts)) == quota
    assert scheduler.submission_quota(load(trainer_waiting=False, **counts)) == 0


def test_it_is_synchronous() -> None:
    assert Lockstep.synchronous

"""`lockstep` starts what the current batch lacks, and only while the trainer waits for it."""

from __future__ import annotations

import pytest
from asyncrl import PluginOptions, RunFacts
from asyncrl.testing.groups import idle_load
from asyncrl_lockstep import Lockstep

RUN = RunFacts(batch_size=3, group_size=4, max_concurrent_samples=16, steps=5)


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
    assert scheduler.submission_quota(idle_load(RUN, trainer_waiting=True, **counts)) == quota
    assert scheduler.submission_quota(idle_load(RUN, trainer_waiting=False, **counts)) == 0


def test_it_is_synchronous() -> None:
    assert Lockstep.synchronous

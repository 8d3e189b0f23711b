"""`group` counts whole groups."""

from __future__ import annotations

from typing import Any

import pytest
from asyncrl import LoadView, PluginOptions, RunFacts
from asyncrl_group import GroupScheduler

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


@pytest.mark.parametrize(("groups", "samples", "quota"), [(0, 0, 4), (4, 1, 0), (3, 1, 1), (5, 0, 0)])
def test_a_slot_is_free_when_a_whole_group_is_done(groups: int, samples: int, quota: int) -> None:
    scheduler = GroupScheduler(PluginOptions(), RUN)
    assert scheduler.submission_quota(load(groups_in_flight=groups, samples_in_flight=samples)) == quota

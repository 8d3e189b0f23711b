"""`group` counts whole groups."""

from __future__ import annotations

import pytest
from asyncrl import PluginOptions, RunFacts
from asyncrl.testing.groups import idle_load
from asyncrl_group import GroupScheduler

RUN = RunFacts(batch_size=3, group_size=4, max_concurrent_samples=16, steps=5)


@pytest.mark.parametrize(("groups", "samples", "quota"), [(0, 0, 4), (4, 1, 0), (3, 1, 1), (5, 0, 0)])
def test_a_slot_is_free_when_a_whole_group_is_done(groups: int, samples: int, quota: int) -> None:
    scheduler = GroupScheduler(PluginOptions(), RUN)
    assert scheduler.submission_quota(idle_load(RUN, groups_in_flight=groups, samples_in_flight=samples)) == quota

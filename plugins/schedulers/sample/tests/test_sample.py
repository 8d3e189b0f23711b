"""`sample` counts free sample slots, whichever groups they came from."""

from __future__ import annotations

import pytest
from asyncrl import PluginOptions, RunFacts
from asyncrl.testing.groups import idle_load
from asyncrl_sample import SampleScheduler

RUN = RunFacts(batch_size=3, group_size=4, max_concurrent_samples=16, steps=5)


@pytest.mark.parametrize(("in_flight", "quota"), [(0, 4), (12, 1), (13, 0), (16, 0), (9, 1), (8, 2)])
def test_a_group_starts_once_group_size_slots_are_free(in_flight: int, quota: int) -> None:
    scheduler = SampleScheduler(PluginOptions(), RUN)
    assert scheduler.submission_quota(idle_load(RUN, samples_in_flight=in_flight, groups_in_flight=7)) == quota


def test_it_generates_while_the_trainer_trains() -> None:
    assert not SampleScheduler.synchronous

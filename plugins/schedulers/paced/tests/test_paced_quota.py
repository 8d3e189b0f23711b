"""`paced` starts what still finds a place before its deadline, and no more than slots are free."""

from __future__ import annotations

import pytest
from asyncrl import PluginOptions, RunFacts
from asyncrl.testing.groups import idle_load
from asyncrl_paced import Paced

RUN = RunFacts(batch_size=3, group_size=4, max_concurrent_samples=400, steps=3)


@pytest.mark.parametrize(
    ("counts", "quota"),
    [
        ({}, 9),
        ({"groups_in_flight": 9}, 0),
        ({"groups_in_flight": 2, "groups_buffered": 3, "groups_in_batch": 1}, 3),
        ({"groups_in_flight": 20}, 0),
        ({"batches_to_deadline": 0}, 0),
        ({"samples_in_flight": 393}, 1),
        ({"samples_in_flight": 397}, 0),
    ],
)
def test_what_is_outstanding_counts_against_the_batches_to_the_deadline(counts: dict[str, int], quota: int) -> None:
    assert Paced(PluginOptions(), RUN).submission_quota(idle_load(RUN, **counts)) == quota


@pytest.mark.parametrize("past", [{}, {"groups_trained": 10**9}, {"groups_issued": 10**9}, {"version": 10**9}])
def test_what_happened_before_does_not_count(past: dict[str, int]) -> None:
    assert Paced(PluginOptions(), RUN).submission_quota(idle_load(RUN, groups_in_flight=4, **past)) == 5


def test_it_needs_a_policy_with_a_deadline() -> None:
    assert set(Paced(PluginOptions(), RUN).needs) == {"staleness_deadline"}


def test_it_generates_while_the_trainer_trains() -> None:
    assert not Paced.synchronous

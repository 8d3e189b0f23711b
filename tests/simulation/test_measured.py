"""What is computed from a run's measurements."""

from __future__ import annotations

from dataclasses import replace

import pytest
from asyncrl.simulation.measured import Measured

MEASURED = Measured(
    steps=5,
    warmup_steps=1,
    step_seconds=(2.0, 4.0, 3.0, 3.0),
    wait_seconds=(0.0, 2.0, 1.0, 1.0),
    train_seconds=(2.0, 2.0, 2.0, 2.0),
    seconds=15.0,
    limit_generation=1.5,
    limit_training=2.0,
    slots_busy=0.5,
    trainer_busy=2 / 3,
    staleness={0: 4, 1: 8, 3: 4},
    token_age_max=3,
    dropped={"stale": 3, "evicted": 2},
    tokens={"trained": 100, "stale": 30, "evicted": 20, "unfinished": 7},
    groups={"issued": 30, "trained": 20, "dropped": 5, "unfinished": 5},
    length_issued=10.0,
    length_trained=9.0,
    length_max=40,
    seconds_max=4.0,
    longest_wait=(3, 2.0),
    publications=5,
)


def test_means_and_shares() -> None:
    assert (MEASURED.step_mean, MEASURED.staleness_mean, MEASURED.staleness_max) == (3.0, 1.25, 3)
    assert MEASURED.dropped_share == 0.2


def test_the_limit_is_the_slower_side() -> None:
    assert (MEASURED.limit, MEASURED.over_limit) == (2.0, 1.5)
    assert replace(MEASURED, limit_generation=3.0).over_limit == 1.0


def test_a_run_of_warm_up_alone_has_no_means() -> None:
    empty = replace(MEASURED, step_seconds=(), staleness={}, limit_generation=0.0, limit_training=0.0)
    assert (empty.step_mean, empty.staleness_mean, empty.staleness_max, empty.over_limit) == (0.0, 0.0, 0, 0.0)


def test_nothing_ended_is_nothing_dropped() -> None:
    assert replace(MEASURED, groups={"issued": 3, "trained": 0, "dropped": 0, "unfinished": 3}).dropped_share == pytest.approx(
        0.0
    )

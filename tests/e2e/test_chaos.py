"""A run that is killed again and again, wherever it is, comes out as one that was not."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from chaos import DELAYS, VICTIMS, Chaos, draw
from hypothesis import given, settings
from hypothesis import strategies as st

STEPS = 14
UNTRAINED = 0.3
"""Held-out accuracy of the model before training is below."""


@settings(max_examples=50, deadline=None)
@given(kills=st.integers(1, 40), seed=st.integers(0, 1000))
def test_moments_are_of_all_victims_in_turn_and_of_all_phases(kills: int, seed: int) -> None:
    moments = draw(kills, 100, seed)
    assert len(moments) == kills
    assert moments == draw(kills, 100, seed)
    assert [moment.step for moment in moments] == sorted(moment.step for moment in moments)
    for before, moment in pairwise(moments):
        assert moment.phase != "start-up" or before.victim == "driver", "nothing starts then"
    if kills >= 30:
        assert {moment.victim for moment in moments} == set(VICTIMS)
        assert {moment.phase for moment in moments} == set(DELAYS)
    assert shutdowns_come_last(moments)


def shutdowns_come_last(moments: Sequence[object]) -> bool:
    at_last = [moment.phase == "shutdown" for moment in moments]  # type: ignore[attr-defined]
    return any(at_last) and at_last == sorted(at_last)


@pytest.mark.slow
@pytest.mark.minutes
@pytest.mark.timeout(1800)
def test_a_run_that_is_killed_five_times_is_as_if_it_had_not_been(tmp_path: Path, cache_dir: Path) -> None:
    """Field reports 20 and 21; thirty kills are `make chaos`."""
    chaos = Chaos(tmp_path, cache_dir, draw(5, STEPS, seed=1), steps=STEPS, eval_interval=6)
    try:
        chaos.execute()
        chaos.check()
    finally:
        chaos.clear()
    assert len(chaos.kills) >= 4, "only the one at shutdown may come too late"
    assert chaos.accuracy > UNTRAINED

"""The learning rate's course."""

from __future__ import annotations

import pytest
from asyncrl_fsdp import FsdpOptions
from asyncrl_fsdp.schedule import learning_rate


def course(schedule: str, **options: int) -> list[float]:
    chosen = FsdpOptions(learning_rate=1.0, lr_schedule=schedule, **{"warmup_steps": 4, **options})
    return [learning_rate(chosen, update, 12) for update in range(12 * chosen.updates_per_step)]


def test_warm_up_rises_linearly_to_the_peak() -> None:
    assert course("constant") == [0.25, 0.5, 0.75] + [1.0] * 9


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_decay_falls_from_the_peak_toward_zero(schedule: str) -> None:
    rates = course(schedule)[4:]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == 1.0
    assert rates[4] == pytest.approx(0.5)
    assert 0 < rates[-1] < 0.2


def test_updates_within_a_step_are_counted() -> None:
    assert course("constant", updates_per_step=2)[:8] == [update / 8 for update in range(1, 9)]

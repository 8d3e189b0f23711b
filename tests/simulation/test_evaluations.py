"""Evaluations in a simulated run: on the rollout engines they hold everything up, elsewhere only their export does."""

from __future__ import annotations

from typing import Any

import pytest
from simulated import SimulatedRun, assert_balanced, facts, host, simulate

STEPS, STEP, INTERVAL = 20, 4.0, 5


def run(**options: Any) -> SimulatedRun:
    """Twenty steps of 4 s each in the trainer, which is the slower side."""
    about = facts(steps=STEPS)
    simulated = simulate(about, host(about), train_seconds=lambda step: STEP, eval_interval=INTERVAL, **options)
    assert_balanced(simulated.service.books())
    return simulated


def seconds(simulated: SimulatedRun) -> float:
    return simulated.measured().seconds


ALONE = 1.0 + STEPS * STEP
"""The first batch has to be generated, the others wait for the trainer."""


def test_without_evaluations_a_run_takes_its_steps() -> None:
    assert seconds(run()) == pytest.approx(ALONE)


def test_on_the_rollout_engines_training_waits_for_each_evaluation() -> None:
    simulated = run(eval_seconds=10.0)
    assert seconds(simulated) == pytest.approx(ALONE + 4 * 10.0, rel=0.05)
    assert [(one.step, one.version, one.lag_steps) for one in simulated.evals] == [
        (5, 5, 0),
        (10, 10, 0),
        (15, 15, 0),
        (20, 20, 0),
    ]


def test_elsewhere_training_waits_for_the_export_alone_and_results_come_late() -> None:
    simulated = run(eval_seconds=10.0, export_seconds=0.5, eval_blocks=False)
    assert seconds(simulated) == pytest.approx(ALONE + 4 * 0.5)
    assert [(one.step, one.version, one.lag_steps) for one in simulated.evals] == [
        (5, 5, 2),
        (10, 10, 2),
        (15, 15, 2),
        (20, 20, 0),
    ]
    assert {one.export_seconds for one in simulated.evals} == {0.5}
    assert [one.duration_seconds for one in simulated.evals] == [pytest.approx(10.0)] * 4


def test_evaluations_that_take_longer_than_their_interval_hold_training_up_once_too_many_are_pending() -> None:
    simulated = run(eval_seconds=100.0, eval_blocks=False, eval_max_in_flight=1)
    assert [one.step for one in simulated.evals] == [5, 10, 15, 20]
    assert seconds(simulated) == pytest.approx(1.0 + 5 * STEP + 3 * 100.0)  # the last one is settled after the last step


def test_or_are_left_out_as_busy_and_hold_up_nothing_but_the_last() -> None:
    simulated = run(eval_seconds=50.0, eval_blocks=False, eval_max_in_flight=1, eval_overflow="skip")
    assert sorted((one.step, one.skipped) for one in simulated.evals) == [(5, ""), (10, "busy"), (15, "busy"), (20, "")]
    assert seconds(simulated) == pytest.approx(ALONE)


@pytest.mark.parametrize("eval_blocks", [True, False])
def test_without_seconds_there_are_no_evaluations(eval_blocks: bool) -> None:
    simulated = run(eval_blocks=eval_blocks)
    assert simulated.evals == [] and seconds(simulated) == pytest.approx(ALONE)

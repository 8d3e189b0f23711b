"""`summary.json`: what a run says of its times."""

from __future__ import annotations

from asyncrl.runtime.summary import Totals
from asyncrl.training.loop import StepTimes


def test_seconds_are_means_over_the_steps_by_part_and_a_step_is_their_sum() -> None:
    totals = Totals()
    totals.add_step(StepTimes(wait=1.0, train=4.0, publish=0.5, checkpoint=0.0, evaluation=8.0, total=13.5), 3.5)
    totals.add_step(StepTimes(wait=0.0, train=2.0, publish=0.0, checkpoint=1.0, evaluation=0.0, total=3.0), 2.0)
    totals.paused, totals.publications, totals.evaluations = 0.25, 1, 1
    summary = totals.summary("completed", 20.0, "")
    seconds = summary["seconds"]
    assert seconds == {
        "step": 4.25,
        "wait": 0.5,
        "train": 3.0,
        "publish": 0.25,
        "paused": 0.125,
        "checkpoint": 0.5,
        "evaluation": 4.0,
    }
    assert seconds["step"] == sum(seconds[part] for part in ("wait", "train", "publish", "checkpoint"))
    assert (summary["publications"], summary["evaluations"]) == (1, 1)


def test_a_run_without_a_step_has_a_summary() -> None:
    assert Totals().summary("failed", 1.0, "why")["seconds"]["step"] == 0.0


def test_what_was_trained_and_generated_in_vain_adds_up_over_the_restarts() -> None:
    checkpoint = Totals(steps=4, tokens_generated=100)
    once = Totals(steps=6, tokens_generated=180).go_back(checkpoint)
    assert (once.steps, once.tokens_generated) == (4, 100)
    once.steps, once.tokens_generated = 5, 130
    twice = once.go_back(checkpoint)
    assert twice.summary("completed", 1.0, "")["restarts"] == {"trainer": 2, "lost_steps": 3, "lost_tokens": 110}

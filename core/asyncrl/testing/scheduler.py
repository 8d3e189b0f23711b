"""The suite of schedulers: an answer for every load, and a run that never comes to a standstill by it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from asyncrl.authoring import Plugin
from asyncrl.errors import AsyncrlError
from asyncrl.rollout.schedule import LoadView
from asyncrl.testing.base import BaseSuite
from asyncrl.testing.cases import for_all, loads
from asyncrl.testing.rules import broken, expect
from asyncrl.testing.runs import (
    cast,
    long_tail,
    oldest_age,
    require_every_step,
    resume,
    simulate,
    simulate_with_faults,
    unbalanced,
)

SIZES: tuple[dict[str, int], ...] = (
    {"batch_size": 1, "group_size": 1, "max_concurrent_samples": 1},
    {"batch_size": 1, "group_size": 4, "max_concurrent_samples": 4},
    {"batch_size": 4, "group_size": 4, "max_concurrent_samples": 4},
    {"batch_size": 4, "group_size": 2, "max_concurrent_samples": 3},
    {"batch_size": 4, "group_size": 2, "max_concurrent_samples": 8, "publish_interval": 3},
    {"batch_size": 2, "group_size": 3, "max_concurrent_samples": 64},
    {"batch_size": 8, "group_size": 2, "max_concurrent_samples": 16, "steps": 1},
)
"""Runs of every proportion; in some the cap holds one group, in some far more than a batch."""


class SchedulerSuite(BaseSuite):
    """Contract of a scheduler: how many groups may start now.

    A subclass may also set:

    Attributes:
        stateful: whether it goes by what it was asked before. One that does not gives the same answer to the same load.
    """

    slot = "scheduler"
    stateful: ClassVar[bool] = False

    def test_it_answers_a_number_for_every_load(self) -> None:
        """The quota is a whole number, 0 or more, whatever the load."""

        @for_all(4 * self.examples, load=loads())
        def rule(load: LoadView) -> None:
            quota = quota_of(load=load)
            expect(
                isinstance(quota, int) and not isinstance(quota, bool) and quota >= 0,
                promised="submission_quota answers a whole number of groups, 0 or more",
                happened=f"it answered {quota!r} to {load}",
                fix="divide with //, and end with max(0, …)",
            )

        quota_of = self.host().one("submission_quota")
        rule()

    def test_the_same_load_gets_the_same_answer(self) -> None:
        """Core asks whenever the load may have changed, so how often it asks must not matter."""
        if self.stateful:
            pytest.skip("it declares that it is stateful")

        @for_all(self.examples, load=loads())
        def rule(load: LoadView) -> None:
            first, second = quota_of(load=load), quota_of(load=load)
            expect(
                first == second,
                promised="asking does not start anything: the same load gets the same answer",
                happened=f"asked twice about {load}, it answered {first!r} and {second!r}",
                fix="go by the load, not by what was granted before; a granted group shows in the next load. "
                "If it must remember, set stateful = True in the suite",
            )

        quota_of = self.host().one("submission_quota")
        rule()

    def test_a_run_of_any_size_ends(self) -> None:
        """Runs of many proportions train all their steps: groups larger than the rest of the cap, a cap of one group, long tails."""
        for changes in SIZES:
            run = self.facts(**changes)
            try:
                ended = simulate(cast(self.make(run=run), run), run, script=long_tail(1))
            except AsyncrlError as error:
                broken(
                    promised="whenever nothing is in flight and a batch is still needed, it grants a group",
                    happened=f"a run with {changes} ended with {type(error).__name__}: {error}",
                    fix="find the load of this run for which it answers 0 although max_concurrent_samples has room and the trainer "
                    "waits; a fraction must not round down to 0 groups",
                )
            expect(
                not unbalanced(ended),
                promised="every step is trained",
                happened=lambda ended=ended: unbalanced(ended),  # type: ignore[misc]
                fix="see which groups the message names",
            )

    def test_a_run_with_faults_ends(self) -> None:
        """Engines die, hang and fail, evaluations hold submission back: the run goes on."""
        run = self.facts(steps=12, max_concurrent_samples=24, max_retries=0)  # so that many groups are dropped
        require_every_step(
            lambda: cast(self.make(run=run), run),
            run,
            seeds=3,
            promised="a run goes on after groups were lost",
            fix="go by what is in flight now, not by what was started: groups_issued and groups_trained also count groups that "
            "were dropped",
            on_unused="drop",
        )

    def test_a_resumed_run_goes_on(self) -> None:
        """After a restart a new object of it serves a run that is in the middle."""
        run = self.facts(steps=9)
        try:
            resume(lambda: cast(self.make(run=run), run), run, seed=3)
        except AsyncrlError as error:
            broken(
                promised="a scheduler that starts in the middle of a run grants what that run needs",
                happened=f"the resumed run ended with {type(error).__name__}: {error}",
                fix="keep no totals of your own: they start from 0 in the new process, while the load's do not",
            )

    def test_it_keeps_the_bound_that_it_needs(self) -> None:
        """If it needs staleness deadlines: with a policy that has the trainer wait, no group comes too late for its own."""
        if "staleness_deadline" not in self.make().plugin.needs:
            pytest.skip("it needs no staleness deadlines")
        for changes in SIZES:
            run = self.facts(**{"steps": 10, **changes})
            try:
                ended = simulate(cast(self.make(run=run), run), run, script=long_tail(2), train_seconds=lambda step: 0.5)
            except AsyncrlError as error:
                pytest.skip(f"test_a_run_of_any_size_ends fails: {error}")
            dropped = ended.service.books()["dropped"]
            expect(
                not dropped and oldest_age(ended) <= 1,
                promised="what it starts is trained before its deadline, so that nothing is thrown away",
                happened=f"in a run with {changes}, {dropped or 'nothing'} was dropped, and the oldest trained token was "
                f"{oldest_age(ended)} versions old where 1 is allowed",
                fix="grant no more than load.batches_to_deadline * load.batch_size - load.groups_outstanding",
            )

    def test_a_synchronous_one_generates_nothing_while_the_trainer_trains(self) -> None:
        """With `synchronous` declared, every trained token comes from the version that it improves."""
        if not getattr(self.ready().kind, "synchronous", False):
            pytest.skip("it does not declare `synchronous`")
        run = self.facts()
        try:
            ended = simulate(cast(self.make(run=run), run), run, script=long_tail(4), train_seconds=lambda step: 5.0)
        except AsyncrlError as error:
            pytest.skip(f"test_a_run_of_any_size_ends fails: {error}")
        expect(
            oldest_age(ended) == 0,
            promised="synchronous = True says that only samples of the version about to be improved are trained",
            happened=f"tokens up to {oldest_age(ended)} versions old were trained",
            fix="answer 0 unless load.trainer_waiting, and no more than the batch still lacks; or don't declare `synchronous`",
        )

    @classmethod
    def exercise(cls, options: Mapping[str, Any]) -> list[Plugin]:
        """Run it, once quietly and once with faults."""
        run = cls.facts(steps=12, max_concurrent_samples=24)
        quiet, troubled = cls.make(options, run), cls.make(options, run)
        try:
            simulate(cast(quiet, run), run, script=long_tail(1))
            simulate_with_faults(cast(troubled, run), run)
        except AsyncrlError as error:
            pytest.skip(f"a run with it fails: {error}")
        return [quiet.plugin, troubled.plugin]

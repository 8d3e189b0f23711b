"""The suite of staleness policies: verdicts that can be relied on, deadlines that agree with them, and a bound that is kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st

from asyncrl.authoring import Plugin
from asyncrl.errors import AsyncrlError
from asyncrl.host import Active
from asyncrl.rollout.verdicts import Deadline, Verdict
from asyncrl.samples import Group
from asyncrl.testing.base import BaseSuite
from asyncrl.testing.cases import GROUPS, for_all
from asyncrl.testing.groups import make_group
from asyncrl.testing.rules import expect
from asyncrl.testing.runs import cast, long_tail, oldest_age, require_every_step, simulate, simulate_with_faults
from asyncrl.testing.verdicts import check_verdict

OLD = 200
"""Versions by which a group may be older than the one about to be improved."""


class StalenessSuite(BaseSuite):
    """Contract of a staleness policy: whether a group may still be trained, by the version that it would improve.

    A subclass may also set:

    Attributes:
        bound: greatest staleness in versions that it lets pass, if it promises one; by default what its deadline for version 0 says.
    """

    slot = "staleness"
    bound: ClassVar[int | None] = None

    def test_its_verdicts_are_verdicts(self) -> None:
        """Every answer is KEEP, drop(reason) or retry(reason), and the reason is a short word."""
        judge = self.host().one("judge_staleness")

        @for_all(self.examples, group=GROUPS, age=st.integers(0, OLD))
        def rule(group: Group, age: int) -> None:
            check_verdict("judge_staleness", judge(group=group, version=group.oldest_version + age), retries=True)

        rule()

    def test_the_same_question_gets_the_same_answer(self) -> None:
        """Core asks at the take and again when the batch is complete, in any order; asking must not change the answer."""
        judge = self.host().one("judge_staleness")

        @for_all(self.examples, questions=st.lists(st.tuples(GROUPS, st.integers(0, OLD)), min_size=1, max_size=8))
        def rule(questions: list[tuple[Group, int]]) -> None:
            def ask() -> list[Any]:
                return [judge(group=group, version=group.oldest_version + age) for group, age in questions]

            first, second = ask(), ask()
            different = [index for index, (one, other) in enumerate(zip(first, second, strict=True)) if one != other]
            expect(
                not different,
                promised="a verdict depends on the group and the version alone",
                happened=lambda: (
                    f"about {_about(*questions[different[0]])} it said first {first[different[0]]}, then {second[different[0]]}"
                ),
                fix="judge by what the group says, and remember nothing between two questions",
            )

        rule()

    def test_older_is_never_better(self) -> None:
        """A group that is refused for a version is refused for every later one, and so is one like it that is older."""
        judge = self.host().one("judge_staleness")

        @for_all(self.examples, group=GROUPS, age=st.integers(0, 12), older=st.integers(0, 12))
        def rule(group: Group, age: int, older: int) -> None:
            version = group.oldest_version + age
            if _kept(judge(group=group, version=version)):
                return
            kept = [more for more in range(1, OLD) if _kept(judge(group=group, version=version + more))]
            expect(
                not kept,
                promised="what is too old for one version is too old for every later one",
                happened=lambda: f"{_about(group, age)} was refused, and kept for version {version + kept[0]}",
                fix="compare group.staleness(version) with one limit",
            )
            elder = make_group(
                group.prompt_id, max(0, group.oldest_version - older), rewards=[one.reward for one in group.samples]
            )
            expect(
                not _kept(judge(group=elder, version=version)),
                promised="an older group is never kept where a younger one is refused",
                happened=f"{_about(group, age)} was refused, and one with oldest version {elder.oldest_version} was kept for it",
                fix="compare group.staleness(version) with one limit",
            )

        rule()

    def test_its_deadline_agrees_with_its_verdicts(self) -> None:
        """A group is kept for its deadline's version and refused for the next one; core plans by the deadline."""
        deadline, judge = self._deadline(), self.host().one("judge_staleness")

        @for_all(self.examples, oldest=st.integers(0, 100))
        def rule(oldest: int) -> None:
            last = deadline(oldest=oldest).version
            group = make_group(oldest, oldest)
            for version, wanted in ((last, True), (last + 1, False)):
                verdict = judge(group=group, version=version)
                expect(
                    _kept(verdict) == wanted,
                    promised=f"a group of oldest version {oldest} with the deadline {last} is {'kept' if wanted else 'refused'} "
                    f"for version {version}",
                    happened=f"judge_staleness answered {verdict}",
                    fix="derive both hooks from one limit: Deadline(oldest + limit), and keep while group.staleness(version) <= limit",
                )

        rule()

    def test_deadlines_never_decrease(self) -> None:
        """A younger group's deadline is no earlier, none is before the group's own version, and they all wait or none does."""
        deadline = self._deadline()
        before: Deadline | None = None
        for oldest in range(64):
            now = deadline(oldest=oldest)
            expect(
                isinstance(now, Deadline) and now.version >= oldest,
                promised="staleness_deadline answers a Deadline of the group's own version or later",
                happened=f"for oldest version {oldest} it answered {now!r}",
                fix="return Deadline(oldest + limit, waits=…) with a limit of 0 or more",
            )
            expect(
                before is None or (now.version >= before.version and now.waits == before.waits),
                promised="deadlines never decrease with the oldest version, and waits is the same for all",
                happened=f"for oldest version {oldest - 1} it is {before}, for {oldest} {now}",
                fix="return Deadline(oldest + limit, waits=…) with one limit",
            )
            before = now

    def test_a_run_keeps_the_bound(self) -> None:
        """In a run whose generation lags far behind, no trained token is older than the bound, and the run still ends."""
        bound = self._bound(self.make())
        if bound is None:
            pytest.skip("it promises no bound: it has no staleness_deadline, and the suite no `bound`")
        for slots in (2, 16):
            run = self.facts(steps=12, max_concurrent_samples=32, on_unused="retry")
            try:
                ended = simulate(
                    cast(self.make(run=run), run), run, script=long_tail(5), slots=slots, train_seconds=lambda step: 0.1
                )
            except AsyncrlError as error:
                pytest.skip(f"test_a_run_with_faults_ends may say why a run with it fails: {error}")
            expect(
                oldest_age(ended) <= bound,
                promised=f"no trained token is more than {bound} versions old",
                happened=f"one of {oldest_age(ended)} was trained",
                fix="judge by group.staleness(version), which counts the oldest trained token of any sample; or promise another `bound`",
            )

    def test_a_run_with_faults_ends(self) -> None:
        """Engines die, hang and fail: enough groups pass for every step to be trained."""
        run = self.facts(steps=12, max_concurrent_samples=24)
        require_every_step(
            lambda: cast(self.make(run=run), run),
            run,
            seeds=2,
            promised="a run with this policy trains all its steps",
            fix="a group without a single old token must pass, or no batch ever gets full",
        )

    @classmethod
    def exercise(cls, options: Mapping[str, Any]) -> list[Plugin]:
        """Judge groups of all ages, ask for deadlines, and run it with faults."""
        run = cls.facts(steps=12, max_concurrent_samples=24)
        alone, running = cls.make(options, run), cls.make(options, run)
        host = cls.host(alone)
        for age in (0, 1, 2, 5, OLD):
            host.one("judge_staleness")(group=make_group(age, 3), version=3 + age)
        if host.has("staleness_deadline"):
            host.one("staleness_deadline")(oldest=3)
        try:
            simulate_with_faults(cast(running, run), run)
        except AsyncrlError as error:
            pytest.skip(f"test_a_run_with_faults_ends fails: {error}")
        return [alone.plugin, running.plugin]

    def _deadline(self) -> Any:
        host = self.host()
        if not host.has("staleness_deadline"):
            pytest.skip("it has no staleness_deadline")
        return host.one("staleness_deadline")

    def _bound(self, active: Active) -> int | None:
        host = self.host(active)
        if self.bound is None and host.has("staleness_deadline"):
            deadline = host.one("staleness_deadline")(oldest=0)
            return deadline.version if isinstance(deadline, Deadline) else None
        return self.bound


def _kept(verdict: object) -> bool:
    return isinstance(verdict, Verdict) and verdict.action == "keep"


def _about(group: Group, age: int) -> str:
    return f"a group of oldest version {group.oldest_version} for version {group.oldest_version + age}"

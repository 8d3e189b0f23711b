"""Staleness policies that break one rule each."""

from __future__ import annotations

from asyncrl import KEEP, Deadline, Group, Plugin, PluginOptions, RunFacts, Verdict, drop, hookimpl

from broken.breaking import breaks


class Bounded(Plugin):
    """Keeps what is at most one version old."""

    def __init__(self, options: PluginOptions, run: RunFacts) -> None:
        super().__init__(options, run)
        self.asked = 0

    @hookimpl
    def judge_staleness(self, group: Group, version: int) -> Verdict:
        self.asked += 1
        return KEEP if self.keeps(group, version) else self.refusal(group, version)

    def keeps(self, group: Group, version: int) -> bool:
        return version <= self.last(group.oldest_version)

    def refusal(self, group: Group, version: int) -> Verdict:
        return drop("stale")

    def last(self, oldest: int) -> int:
        return oldest + 1


@breaks("")
class Right(Bounded):
    @hookimpl
    def staleness_deadline(self, oldest: int) -> Deadline:
        return Deadline(self.last(oldest))


@breaks("test_its_verdicts_are_verdicts")
class GivesLongReasons(Right):
    def refusal(self, group: Group, version: int) -> Verdict:
        return drop("this group is too old")


@breaks("test_the_same_question_gets_the_same_answer")
class ChangesItsReason(Right):
    def refusal(self, group: Group, version: int) -> Verdict:
        return drop("stale" if self.asked % 2 or group.staleness(version) < 100 else "old")


@breaks("test_older_is_never_better")
class BeginsAnewAtHundred(Right):
    def keeps(self, group: Group, version: int) -> bool:
        return group.staleness(version) % 100 <= 1


@breaks("test_its_deadline_agrees_with_its_verdicts")
class SaysALaterDeadline(Right):
    @hookimpl
    def staleness_deadline(self, oldest: int) -> Deadline:
        return Deadline(oldest + 2)


@breaks("test_deadlines_never_decrease")
class HasOneLongDeadline(Right):
    def last(self, oldest: int) -> int:
        return oldest + (5 if oldest == 60 else 1)


@breaks("test_a_run_keeps_the_bound", bound=1)
class LooksAtTheNewestToken(Bounded):
    def keeps(self, group: Group, version: int) -> bool:
        return version - group.samples[0].spans[-1][0] <= 1


@breaks("test_a_run_with_faults_ends")
class RefusesLaterVersions(Right):
    def keeps(self, group: Group, version: int) -> bool:
        return super().keeps(group, version) and not (version > 8 and self.run.max_concurrent_samples == 24)

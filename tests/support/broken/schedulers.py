"""Schedulers that break one rule each."""

from __future__ import annotations

from asyncrl import LoadView, PluginOptions, RunFacts, SchedulerPlugin, hookimpl

from broken.breaking import breaks


@breaks("")
class Right(SchedulerPlugin):
    def __init__(self, options: PluginOptions, run: RunFacts) -> None:
        super().__init__(options, run)
        self.asked = 0
        self.first: LoadView | None = None

    @hookimpl
    def submission_quota(self, load: LoadView) -> int:
        self.asked += 1
        self.first = self.first or load
        return self.quota(load)

    def quota(self, load: LoadView) -> int:
        return (load.max_concurrent_samples - load.samples_in_flight) // load.group_size


@breaks("test_it_answers_a_number_for_every_load")
class GoesBelowZero(Right):
    def quota(self, load: LoadView) -> int:
        return super().quota(load) - (load.group_size > 8)


@breaks("test_the_same_load_gets_the_same_answer")
class AnswersEverySecondTime(Right):
    def quota(self, load: LoadView) -> int:
        return 0 if load.group_size > 8 and self.asked % 2 else super().quota(load)


@breaks("test_a_run_of_any_size_ends")
class WantsRoomForTwo(Right):
    def quota(self, load: LoadView) -> int:
        return super().quota(load) if load.max_concurrent_samples >= 2 * load.group_size else 0


@breaks("test_a_run_with_faults_ends")
class CountsDroppedGroupsAsInFlight(Right):
    def quota(self, load: LoadView) -> int:
        assert self.first is not None
        started = load.groups_issued - self.first.groups_issued
        ended = load.groups_trained - self.first.groups_trained + load.groups_buffered + load.groups_in_batch
        return min(super().quota(load), max(0, load.max_concurrent_samples // load.group_size - (started - ended)))


@breaks("test_a_resumed_run_goes_on")
class ThinksThatEveryRunIsNew(Right):
    def quota(self, load: LoadView) -> int:
        assert self.first is not None
        return 0 if self.first.groups_trained else super().quota(load)


@breaks("test_it_keeps_the_bound_that_it_needs")
class NeedsABoundAndForgetsIt(Right):
    @property
    def needs(self) -> dict[str, str]:
        return {"staleness_deadline": "choose a policy that has one"}


@breaks("test_a_synchronous_one_generates_nothing_while_the_trainer_trains")
class IsNotSynchronous(Right):
    synchronous = True

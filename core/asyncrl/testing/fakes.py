"""The smallest plugins that keep their contracts: what stands beside the plugin under test in a simulated run."""

from __future__ import annotations

import random
from typing import Any

from asyncrl.authoring import Plugin, PluginOptions, RunFacts, SchedulerPlugin
from asyncrl.hookspecs import hookimpl
from asyncrl.host import Active
from asyncrl.rollout.sampler import SampleDone, Sampler
from asyncrl.rollout.schedule import LoadView
from asyncrl.rollout.verdicts import (
    ACCEPTED,
    FULL,
    KEEP,
    NOTHING,
    Deadline,
    PutOutcome,
    Restored,
    State,
    Taken,
    Verdict,
    drop,
    retry,
    taken,
)
from asyncrl.samples import Group, Prompt, Sample, Status, full_mask


class OneTurn(Plugin):
    """Producer: one completion a sample."""

    @hookimpl
    async def produce(self, prompt: Prompt, sampler: Sampler, done: SampleDone) -> Group:
        async def one(prompt: Prompt) -> Sample:
            answer = await sampler.generate(prompt, prompt.token_ids)
            status = {"stop": Status.COMPLETED, "length": Status.TRUNCATED}.get(answer.finish_reason, Status.ABORTED)
            reason = "aborted" if status is Status.ABORTED else ""
            mask = full_mask(len(answer.token_ids))
            sample = Sample(answer.token_ids, answer.logprobs, mask, answer.spans, status, 0.0, reason)
            return await sampler.score(prompt, sample)

        return await sampler.group(prompt, one, done)


class FillSlots(SchedulerPlugin):
    """Scheduler: a group for every `group_size` free slots."""

    @hookimpl
    def submission_quota(self, load: LoadView) -> int:
        return (load.max_concurrent_samples - load.samples_in_flight) // load.group_size


class PlainList(Plugin):
    """Buffer: two batches of groups, the one that is due or the first one first."""

    def __init__(self, options: PluginOptions, run: RunFacts) -> None:
        super().__init__(options, run)
        self._groups: list[Group] = []

    @hookimpl
    def buffer_put(self, group: Group) -> PutOutcome:
        if len(self._groups) == 2 * self.run.batch_size:
            return FULL
        self._groups.append(group)
        return ACCEPTED

    @hookimpl
    def buffer_take(self, due: int) -> Taken:
        if not self._groups:
            return NOTHING
        first_due = [index for index, group in enumerate(self._groups) if group.oldest_version <= due]
        return taken(self._groups.pop(first_due[0] if first_due else 0))

    @hookimpl
    def buffer_size(self) -> int:
        return len(self._groups)

    @hookimpl
    def buffer_state(self) -> State:
        return State(tuple(self._groups))

    @hookimpl
    def buffer_restore(self, state: State) -> Restored:
        room = 2 * self.run.batch_size
        self._groups = list(state.groups[:room])
        return Restored(state.groups[room:])


class AnyAge(Plugin):
    """Staleness: keeps everything."""

    @hookimpl
    def judge_staleness(self, group: Group, version: int) -> Verdict:
        return KEEP


class AgeOne(Plugin):
    """Staleness: tokens of the version before are as old as may be, and the trainer waits for groups that would become older."""

    @hookimpl
    def staleness_deadline(self, oldest: int) -> Deadline:
        return Deadline(oldest + 1, waits=True)

    @hookimpl
    def judge_staleness(self, group: Group, version: int) -> Verdict:
        return KEEP if group.staleness(version) <= 1 else drop("stale")


class TriesAgain(Plugin):
    """Staleness: has every fifth prompt's group issued again once, and drops what is more than 4 versions old."""

    def __init__(self, options: PluginOptions, run: RunFacts) -> None:
        super().__init__(options, run)
        self._again: set[int] = set()

    @hookimpl
    def judge_staleness(self, group: Group, version: int) -> Verdict:
        if group.prompt_id % 5 == 2 and group.prompt_id not in self._again:
            self._again.add(group.prompt_id)
            return retry("again")
        return KEEP if group.staleness(version) <= 4 else drop("stale")


class Scores(Plugin):
    """Observer: a score for each group, drawn by its prompt."""

    @hookimpl
    def score_group(self, group: Group) -> float:
        return score_of(group)


def score_of(group: Group) -> float:
    """Return the score that `Scores` gives, -1 to 1."""
    return random.Random(group.prompt_id).uniform(-1, 1)


STANDARD: dict[str, type[Plugin]] = {
    "producer": OneTurn,
    "scheduler": FillSlots,
    "buffer": PlainList,
    "staleness": AnyAge,
}
"""Who plays a slot that the plugin under test does not."""

HELPERS: dict[str, tuple[str, type[Plugin]]] = {"score_group": ("observers", Scores), "staleness_deadline": ("staleness", AgeOne)}
"""Who implements an optional hook that a plugin needs."""


def stand_in(slot: str, kind: type[Plugin], run: RunFacts) -> Active:
    """Return a fake as it is handed to a host."""
    members: dict[str, Any] = {"slot": slot, "name": kind.__name__, "__doc__": kind.__doc__}
    return Active(slot, kind.__name__, "asyncrl-core", "", type(kind.__name__, (kind,), members)(kind.Options(), run))

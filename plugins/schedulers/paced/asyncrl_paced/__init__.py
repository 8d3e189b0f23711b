"""Starts a group only if the batches up to its staleness deadline have room for it."""

from __future__ import annotations

from asyncrl import LoadView, SchedulerPlugin, hookimpl


class Paced(SchedulerPlugin):
    """Admission control: with what is in flight and buffered counted, a group that starts now still finds a place before it is too
    old. Counts what is outstanding against what is still to come, never totals since the start, so nothing that happened before, such
    as a resume, a dead engine or a stalled trainer, can leave it with too much or too little. The rule is that of AReaL (Fu et al.,
    2025, section 5.1), there written with totals."""

    hook_api = 1

    @property
    def needs(self) -> dict[str, str]:
        return {"staleness_deadline": "choose a staleness policy that has a deadline, such as --staleness max-gap"}

    @hookimpl
    def submission_quota(self, load: LoadView) -> int:
        room = load.batches_to_deadline * load.batch_size - load.groups_outstanding
        free = (load.max_concurrent_samples - load.samples_in_flight) // load.group_size
        return max(0, min(room, free))

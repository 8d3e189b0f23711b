"""Starts a group as soon as group_size sample slots are free, whichever groups they came from."""

from __future__ import annotations

from asyncrl import LoadView, SchedulerPlugin, hookimpl


class SampleScheduler(SchedulerPlugin):
    """A finished sample frees its own slot, so that one long sample does not hold the slots of its whole group."""

    hook_api = 1

    @hookimpl
    def submission_quota(self, load: LoadView) -> int:
        return (load.max_concurrent_samples - load.samples_in_flight) // load.group_size

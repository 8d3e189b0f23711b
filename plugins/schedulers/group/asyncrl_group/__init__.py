"""Starts a group when a whole group has finished."""

from __future__ import annotations

from asyncrl import LoadView, SchedulerPlugin, hookimpl


class GroupScheduler(SchedulerPlugin):
    """The slots of a group are freed together, when its last sample has ended and it is in the buffer."""

    hook_api = 1

    @hookimpl
    def submission_quota(self, load: LoadView) -> int:
        return max(0, load.max_concurrent_samples // load.group_size - load.groups_in_flight)

"""Synchronous baseline: one batch a weight version, nothing while training."""

from __future__ import annotations

from asyncrl import LoadView, SchedulerPlugin, hookimpl


class Lockstep(SchedulerPlugin):
    """Starts what the current batch still lacks, and only while the trainer waits for it. A group that was refused is replaced at
    once, under the same version, so the batch is the first `batch_size` groups of the stream that pass."""

    hook_api = 1
    synchronous = True

    @hookimpl
    def submission_quota(self, load: LoadView) -> int:
        if not load.trainer_waiting:
            return 0
        return max(0, load.batch_size - load.groups_in_batch - load.groups_buffered - load.groups_in_flight)

"""What a scheduler sees when it is asked how many groups may start."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoadView:
    """The load of the rollout side at this moment. Running counts; nothing is scanned to make one.

    Attributes:
        group_size: samples a group.
        batch_size: groups a batch.
        max_concurrent_samples: cap on samples in flight.
        samples_in_flight: samples that an engine or a scorer is still working on.
        groups_in_flight: groups with a sample in flight or not yet handed to the gate.
        groups_buffered: finished groups in the buffer.
        groups_in_batch: groups already taken for the batch that is being assembled.
        groups_trained: groups handed to the trainer in complete batches, over the whole run.
        groups_issued: groups started so far, over the whole run.
        trainer_waiting: whether the trainer waits for a batch now (it is not training).
        version: weight version of the engines; the trainer is about to improve it or is improving it.
        steps_left: batches the run still needs, the one being assembled included.
        batches_to_deadline: batches that may still train a group started now: those up to its staleness deadline, and `steps_left`
            at most; the one being assembled counts, one that the trainer has does not.
    """

    group_size: int
    batch_size: int
    max_concurrent_samples: int
    samples_in_flight: int
    groups_in_flight: int
    groups_buffered: int
    groups_in_batch: int
    groups_trained: int
    groups_issued: int
    trainer_waiting: bool
    version: int
    steps_left: int
    batches_to_deadline: int

    @property
    def groups_outstanding(self) -> int:
        """Groups that were started and are not handed to the trainer yet."""
        return self.groups_in_flight + self.groups_buffered + self.groups_in_batch

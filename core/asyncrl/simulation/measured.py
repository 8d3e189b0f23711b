"""What a simulated run measured, in virtual seconds: plain numbers to print, compare and draw."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean


@dataclass(frozen=True)
class Measured:
    """Everything that is said by step leaves the first `warmup_steps` out, and so do the busy shares and `staleness`; books, tokens and
    lengths are those of the whole run.

    Attributes:
        steps: steps trained, warm-up included.
        warmup_steps: steps left out.
        step_seconds: time of each step from asking for its batch to having published, without evaluation.
        wait_seconds: part of it in which the trainer waited for the batch.
        train_seconds: part of it in which the trainer trained.
        seconds: the whole run, evaluations included.
        limit_generation: seconds in which all slots together generate a batch of groups of the issued mean work, at the speed they
            have when all are busy. Slots beyond `max_concurrent_samples` don't count.
        limit_training: mean seconds of training a batch.
        slots_busy: share of slot time spent generating, 0 to 1.
        trainer_busy: share of the time of the steps spent training, 0 to 1.
        staleness: groups trained, by staleness in versions.
        token_age_max: greatest (version improved - version that generated it) of any trained token of the whole run.
        dropped: groups dropped, by reason.
        tokens: tokens by fate: ``trained``, each reason of dropping, ``unfinished``.
        groups: ``issued``, ``trained``, ``dropped``, ``unfinished``.
        length_issued: mean planned tokens over everything that was started; what is tried again on another engine counts again.
        length_trained: mean tokens of a trained sample.
        length_max: tokens of the longest sample that was started.
        seconds_max: slot seconds of the sample that takes longest, at the speed of busy engines.
        longest_wait: (step, seconds) of the trainer's longest wait after warm-up; (0, 0.0) without one.
        publications: versions published.
    """

    steps: int
    warmup_steps: int
    step_seconds: tuple[float, ...]
    wait_seconds: tuple[float, ...]
    train_seconds: tuple[float, ...]
    seconds: float
    limit_generation: float
    limit_training: float
    slots_busy: float
    trainer_busy: float
    staleness: dict[int, int]
    token_age_max: int
    dropped: dict[str, int]
    tokens: dict[str, int]
    groups: dict[str, int]
    length_issued: float
    length_trained: float
    length_max: int
    seconds_max: float
    longest_wait: tuple[int, float]
    publications: int

    @property
    def step_mean(self) -> float:
        """Mean seconds a step."""
        return fmean(self.step_seconds) if self.step_seconds else 0.0

    @property
    def limit(self) -> float:
        """Seconds that no schedule can beat for long: the slower of generation and training."""
        return max(self.limit_generation, self.limit_training)

    @property
    def over_limit(self) -> float:
        """Mean step time as a multiple of the limit; 1 is perfect."""
        return self.step_mean / self.limit if self.limit else 0.0

    @property
    def staleness_mean(self) -> float:
        groups = sum(self.staleness.values())
        return sum(age * count for age, count in self.staleness.items()) / groups if groups else 0.0

    @property
    def staleness_max(self) -> int:
        return max(self.staleness, default=0)

    @property
    def dropped_share(self) -> float:
        """Groups dropped over groups that have ended."""
        dropped = self.groups["dropped"]
        ended = dropped + self.groups["trained"]
        return dropped / ended if ended else 0.0

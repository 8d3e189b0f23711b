"""Writes down what a simulated run does, step by step, and sums it up as `Measured`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from asyncrl.authoring import RunFacts
from asyncrl.rollout.service import RolloutService
from asyncrl.simulation.batch import OutlinedBatch
from asyncrl.simulation.engine import ScriptedEngine
from asyncrl.simulation.measured import Measured
from asyncrl.training.interfaces import TrainingBatch
from asyncrl.training.loop import StepTimes


@dataclass(frozen=True)
class _Step:
    """A finished step: its times, and how many slot seconds there had been when it ended."""

    number: int
    times: StepTimes
    ended: float
    slot_seconds: float
    staleness: Counter[int]


class Recorder:
    """Told of each batch that was trained and of each step that ended."""

    def __init__(self, service: RolloutService, facts: RunFacts, engines: Sequence[ScriptedEngine]) -> None:
        self._service = service
        self._facts = facts
        self._engines = engines
        self._steps: list[_Step] = []
        self._staleness: Counter[int] = Counter()
        self._token_age_max = 0
        self._trained_samples = 0
        self._trained_tokens = 0
        self._started = 0.0

    def start(self) -> None:
        self._started = asyncio.get_running_loop().time()

    def trained(self, batch: TrainingBatch) -> None:
        """Count a batch. Its groups are asked, not its token arrays, which need not be made."""
        assert isinstance(batch, OutlinedBatch)
        self._staleness = Counter(group.staleness(batch.version) for group in batch.source)
        samples = list(chain.from_iterable(group.samples for group in batch.source))
        if batch.keep is not None:
            samples = [sample for sample, kept in zip(samples, batch.keep, strict=True) if kept]
        oldest = min((sample.oldest_version for sample in samples if len(sample.token_ids)), default=batch.version)
        self._token_age_max = max(self._token_age_max, batch.version - oldest)
        self._trained_samples += len(samples)
        self._trained_tokens += sum(len(sample.token_ids) for sample in samples)

    def step(self, number: int, times: StepTimes) -> None:
        slot_seconds = sum(engine.slot_seconds for engine in self._engines)
        self._steps.append(_Step(number, times, asyncio.get_running_loop().time(), slot_seconds, self._staleness))

    def measured(self, warmup_steps: int, publications: int) -> Measured:
        """Sum up. With fewer steps than `warmup_steps`, everything that is said by step is empty or 0."""
        steps, engines, ledger = self._steps[warmup_steps:], self._engines, self._service.ledger
        before = self._steps[warmup_steps - 1] if 0 < warmup_steps <= len(self._steps) else None
        began, slot_seconds = (before.ended, before.slot_seconds) if before else (self._started, 0.0)
        ended = self._steps[-1].ended if self._steps else self._started
        if steps:
            slot_seconds = steps[-1].slot_seconds - slot_seconds
        step_seconds = tuple(step.times.total - step.times.evaluation for step in steps)
        train_seconds = tuple(step.times.train for step in steps)
        slots = min(sum(engine.slots for engine in engines), self._facts.max_concurrent_samples)
        requests = sum(engine.requests for engine in engines)
        tokens = sum(engine.planned_tokens for engine in engines)
        work = sum(engine.planned_seconds * self._full_load(engine, slots) for engine in engines)
        samples = self._facts.batch_size * self._facts.group_size
        longest_wait = max(((step.number, step.times.wait) for step in steps), key=lambda wait: wait[1], default=(0, 0.0))
        return Measured(
            steps=len(self._steps),
            warmup_steps=warmup_steps,
            step_seconds=step_seconds,
            wait_seconds=tuple(step.times.wait for step in steps),
            train_seconds=train_seconds,
            seconds=ended - self._started,
            limit_generation=_ratio(samples * _ratio(work, requests), slots),
            limit_training=_ratio(sum(train_seconds), len(train_seconds)),
            slots_busy=_ratio(slot_seconds if steps else 0.0, slots * (ended - began)),
            trainer_busy=_ratio(sum(train_seconds), sum(step_seconds)),
            staleness=dict(sorted(sum((step.staleness for step in steps), Counter[int]()).items())),
            token_age_max=self._token_age_max,
            dropped=dict(ledger.dropped),
            tokens={"trained": ledger.trained_tokens} | ledger.dropped_tokens | {"unfinished": ledger.unfinished_tokens},
            groups={
                "issued": ledger.cursor,
                "trained": ledger.trained,
                "dropped": sum(ledger.dropped.values()),
                "unfinished": ledger.unfinished,
            },
            length_issued=_ratio(tokens, requests),
            length_trained=_ratio(self._trained_tokens, self._trained_samples),
            length_max=max((engine.longest_tokens for engine in engines), default=0),
            seconds_max=max((engine.longest_seconds * self._full_load(engine, slots) for engine in engines), default=0.0),
            longest_wait=longest_wait,
            publications=publications,
        )

    def _full_load(self, engine: ScriptedEngine, slots: int) -> float:
        """Factor on an engine's times when all `slots` of the run are busy."""
        if engine.load_factor is None:
            return 1.0
        total = sum(other.slots for other in self._engines)
        return engine.load_factor(max(1, round(engine.slots * slots / total)))


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0

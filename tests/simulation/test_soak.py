"""Two virtual hours in which engines die and come back, weights are published and evaluated: nothing piles up."""

from __future__ import annotations

import asyncio
import gc
import sys
from dataclasses import dataclass

from asyncrl.simulation.run import SimulatedRun
from asyncrl.simulation.script import EngineEvent
from simulated import assert_balanced, facts, host, long_tail, simulate

HOURS = 2
LOOK = 300
"""Virtual seconds between two looks."""


@dataclass(frozen=True)
class Held:
    """What the process holds between two steps."""

    tasks: int
    objects: int
    blocks: int


def test_two_hours_leave_no_task_and_no_object_behind() -> None:
    run = facts(steps=int(HOURS * 3600 / 2.5), max_concurrent_samples=16, publish_interval=4)
    times = [float(at) for at in range(100, HOURS * 3600, 300)]
    faults = [event for at in times for event in (EngineEvent(0, at, "die"), EngineEvent(0, at + 20.0, "revive"))]
    seen: list[Held] = []

    async def look(simulated: SimulatedRun) -> None:
        while True:
            await asyncio.sleep(LOOK)
            simulated.service.drain_metrics()  # as the controller does
            simulated._recorder._steps.clear()  # the measurement's own
            simulated.evals.clear()
            gc.collect()
            seen.append(Held(len(asyncio.all_tasks()), len(gc.get_objects()), sys.getallocatedblocks()))

    simulated = simulate(
        run,
        host(run),
        script=long_tail(1),
        engines=2,
        during=look,
        train_seconds=lambda step: 2.5,
        publish_seconds=0.2,
        eval_seconds=5.0,
        eval_interval=50,
        faults=faults,
        keep_batches=False,
    )
    assert len(seen) >= HOURS * 3600 // LOOK - 1
    assert simulated.service.books()["trained"] == run.steps * run.batch_size
    assert_balanced(simulated.service.books())
    limit = run.max_concurrent_samples + 24  # the samples in flight, their groups, and the loops themselves
    assert max(held.tasks for held in seen) <= limit
    for name in ("objects", "blocks"):
        assert growth([getattr(held, name) for held in seen[4:]]) < 0.02, name


def growth(values: list[int]) -> float:
    """By which share the second half is above the first, in the median: single looks meet more or less in flight."""
    half = len(values) // 2
    first, second = sorted(values[:half])[half // 2], sorted(values[half:])[half // 2]
    return second / first - 1.0

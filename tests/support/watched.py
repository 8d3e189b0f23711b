"""Whole runs under the virtual clock that are looked at whenever time moves, must end by a deadline, and leave nothing behind."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from asyncrl import RunFacts
from asyncrl.errors import AsyncrlError
from asyncrl.host import Host
from asyncrl.rollout.engine import GenerateRequest
from asyncrl.simulation.clock import VirtualClockLoop
from asyncrl.simulation.engine import Plan, ScriptedEngine
from asyncrl.simulation.run import SimulatedRun
from asyncrl.training.interfaces import StepReport, TrainingBatch
from simulated import assert_balanced, host, same_length, trained_prompts


class WatchedRun(SimulatedRun):
    """Attributes:
    improved: the version that each batch improved, as the trainer saw it.
    published: when each version was complete, in virtual seconds; the first is 1.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.improved: list[int] = []
        self.published: list[float] = []

    async def train(self, batch: TrainingBatch) -> StepReport:
        self.improved.append(self.version)
        return await super().train(batch)

    async def publish(self, update_norm: float) -> int:
        version = await super().publish(update_norm)
        self.published.append(asyncio.get_running_loop().time())
        return version


Look = Callable[[WatchedRun], None]


@dataclass(frozen=True)
class Ending:
    """How a run ended: completed, or with the one error that its caller got; `at` in virtual seconds."""

    run: WatchedRun
    error: AsyncrlError | None
    at: float


class _Looking(VirtualClockLoop):
    """Looks at the run each time before the clock moves: whatever could happen at a moment has happened then."""

    def __init__(self, limit: float, look: Look) -> None:
        super().__init__(limit)
        self.run_looked_at: WatchedRun | None = None
        self._look = look

    def jump(self) -> None:
        if (run := self.run_looked_at) is not None:
            self.run_looked_at = None  # what fails once is not looked at again while the loop is closed
            self._look(run)
            self.run_looked_at = run
        super().jump()


def run_to_its_end(
    run: RunFacts,
    plugins: Host,
    *,
    script: Callable[[GenerateRequest, int], Plan] = same_length,
    engines: int = 1,
    slots: int = 64,
    request_timeout: float = 600.0,
    deadline: float = 100_000.0,
    look: Look = lambda simulated: None,
    kind: type[WatchedRun] = WatchedRun,
    **options: Any,
) -> Ending:
    """Run until it completes or fails, and see that nothing goes on then: no task, no request, no group that a trainer could get.

    Args:
        deadline: virtual seconds by which it must have ended; a deadlock before that fails at once.
        look: called with the run each time before the clock moves.
    """

    async def main() -> Ending:
        scripted = [
            ScriptedEngine(f"engine-{index}", slots=slots, script=script, request_timeout=request_timeout)
            for index in range(engines)
        ]
        simulated = kind(plugins, run, scripted, **options)
        loop.run_looked_at = simulated
        error = None
        try:
            await simulated.run()
        except AsyncrlError as caught:
            error = caught
        loop.run_looked_at = None
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert [engine.in_flight for engine in scripted] == [0] * engines
        simulated.service.check()
        return Ending(simulated, error, loop.time())

    loop = _Looking(deadline, look)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main())


def bounded(run: RunFacts, scheduler: str, bound: int, on_stale: str, *plugins: Any, **options: Any) -> Host:
    """The default plugins, but for a scheduler and a bound on staleness, together with (slot, name or class, options)."""
    policy = ("staleness", "max-gap", {"max_staleness": bound, "on_stale": on_stale})
    return host(run, ("scheduler", scheduler, {}), policy, *plugins, **options)


def completed(ending: Ending) -> WatchedRun:
    """Return a run that came to its end: all steps, no prompt trained twice, books that balance."""
    assert ending.error is None
    simulated, run = ending.run, ending.run.facts
    trained = trained_prompts(simulated)
    assert len(simulated.batches) == run.steps
    assert len(trained) == len(set(trained)) == run.steps * run.batch_size
    assert_balanced(simulated.service.books())
    return simulated


def failed(ending: Ending, kind: type[AsyncrlError], match: str) -> None:
    """See that a run ended in exactly this kind of error."""
    assert type(ending.error) is kind and re.search(match, str(ending.error)), ending.error
    assert_balanced(ending.run.service.books())

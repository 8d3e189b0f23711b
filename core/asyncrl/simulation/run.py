"""A whole run under the virtual clock: the real loops, gate, ledger, pool and plugins around scripted engines and a trainer that sleeps."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Literal

from asyncrl.authoring import RunFacts
from asyncrl.errors import OptionError
from asyncrl.evaluation.dispatcher import EvalDispatcher
from asyncrl.evaluation.records import Checkpoint, EvalRecord, EvalResult
from asyncrl.evaluation.snapshots import Snapshots
from asyncrl.host import Host
from asyncrl.rollout.engine import GenerateRequest, PauseMode
from asyncrl.rollout.pool import EnginePool
from asyncrl.rollout.service import RolloutService
from asyncrl.samples import Completion
from asyncrl.simulation.batch import outline
from asyncrl.simulation.engine import ScriptedEngine
from asyncrl.simulation.measured import Measured
from asyncrl.simulation.recorder import Recorder
from asyncrl.simulation.script import EngineEvent, NumberedRequest
from asyncrl.training.interfaces import StepReport, TrainingBatch
from asyncrl.training.loop import StepTimes, Stop, TrainingLoop

HEALTH_INTERVAL = 2.0
"""Virtual seconds between two looks at the engines."""
RARELY = (200_000, 20, 100)
"""Thresholds of the cyclic garbage collector meanwhile. It would look through everything in flight again and again, at a third of the
whole time, and find hardly anything: what ends is freed by its reference count."""


class SimulatedRun:
    """Make and run it on one event loop (`run_virtual`).

    Args:
        train_seconds: time of a step, by its number.
        publish_seconds: for which the engines stand still at a publication.
        eval_seconds: time of an evaluation. On the rollout engines (`eval_blocks`) nothing is submitted meanwhile, and the trainer waits;
            elsewhere it goes on.
        export_seconds: for which the trainer waits for a snapshot, before an evaluation elsewhere.
        eval_interval: steps between evaluations; the last step has one too. 0 is none at all.
        eval_max_in_flight, eval_overflow: as in a run.
        pause_mode: how the engines stand still.
        max_attempts: tries a request has.
        faults: what happens to engines, and when. Dead engines are found and left out as the pool does it in a run.
        keep_batches: whether `batches` holds what was trained; a long run of big batches has no memory for it.

    Attributes:
        batches: what was trained, in order.
        evals: record of each evaluation, in the order in which they were settled.

    Raises:
        OptionError: a fault is for an engine that does not exist.
    """

    def __init__(
        self,
        host: Host,
        facts: RunFacts,
        engines: Sequence[ScriptedEngine],
        *,
        train_seconds: Callable[[int], float] = lambda step: 1.0,
        publish_seconds: float = 0.0,
        eval_seconds: float = 0.0,
        eval_interval: int = 0,
        eval_blocks: bool = True,
        eval_max_in_flight: int = 2,
        eval_overflow: Literal["backpressure", "skip"] = "backpressure",
        export_seconds: float = 0.0,
        pause_mode: PauseMode = "retract",
        max_attempts: int = 4,
        on_unused: str = "drop",
        wait_warning: float = 30.0,
        faults: Sequence[EngineEvent] = (),
        keep_batches: bool = True,
    ) -> None:
        self.facts = facts
        self.engines = engines
        self.pool = EnginePool(
            engines,
            max_attempts=max_attempts,
            health_interval=0,
            seed=facts.seed,
            lost_remedy="the faults left none: let one revive sooner",
        )
        numbered = _Numbered(self.pool, facts.group_size)
        self.service = RolloutService(
            host,
            numbered,
            facts,
            on_unused=on_unused,
            wait_warning=wait_warning,
            make_batch=outline,  # token arrays are made when somebody looks
        )
        self.batches: list[TrainingBatch] = []
        self.version = 0
        self._recorder = Recorder(self.service, facts, engines)
        self._train_seconds = train_seconds
        self._publish_seconds = publish_seconds
        self._eval_seconds = eval_seconds
        self._eval_interval = eval_interval if eval_seconds + export_seconds > 0 else 0
        self.evals: list[EvalRecord] = []
        self._dispatcher = EvalDispatcher(
            interval=self._eval_interval,
            before=False,
            evaluate=self._evaluate if eval_blocks else self._evaluate_elsewhere,
            record=self.evals.append,
            snapshots=Snapshots() if eval_blocks else _Export(export_seconds),
            blocking=eval_blocks,
            max_in_flight=eval_max_in_flight,
            overflow=eval_overflow,
            timeout=eval_seconds + 1.0,
            wait_warning=max(wait_warning, eval_seconds * (eval_max_in_flight + 1)),
        )
        self._pause_mode = pause_mode
        self._keep_batches = keep_batches
        self._looking: asyncio.Task[None] | None = None
        self._faults = sorted(faults, key=lambda event: event.at)
        if wrong := [event for event in faults if not 0 <= event.engine < len(engines)]:
            raise OptionError(f"a fault is for engine {wrong[0].engine}, but there are {len(engines)}, counted from 0")

    async def run(self) -> None:
        """Train `facts.steps` steps and stop; the books are checked throughout."""
        clock = asyncio.get_running_loop()
        loop = TrainingLoop(
            steps=self.facts.steps,
            publish_interval=self.facts.publish_interval,
            rollout=self,
            trainer=self,
            publisher=self,
            evals=self._dispatcher,
            checkpoints=_NothingDue(),
            on_step=self._on_step,
            stop=Stop(),
        )
        gc_thresholds = gc.get_threshold()
        gc.set_threshold(*RARELY)
        timers = [clock.call_at(clock.time() + event.at, self._happen, event) for event in self._faults]
        self._recorder.start()
        await self.service.start()
        try:
            await loop.run()
        finally:
            gc.set_threshold(*gc_thresholds)
            for timer in timers:
                timer.cancel()
            await self._dispatcher.close()
            await self.service.stop()
            if self._looking is not None:
                self._looking.cancel()
                await asyncio.gather(self._looking, return_exceptions=True)
            await self.pool.close()

    def measured(self, warmup_steps: int = 0) -> Measured:
        """Return what the run measured; call it after `run`.

        Args:
            warmup_steps: first steps that step times, busy shares and staleness leave out.
        """
        return self._recorder.measured(warmup_steps, self.version)

    async def take_batch(self, version: int, step: int) -> TrainingBatch:
        batch, _ = await self.service.take_batch(version, step)
        return batch

    async def train(self, batch: TrainingBatch) -> StepReport:
        seconds = self._train_seconds(batch.step)
        await asyncio.sleep(seconds)
        self._recorder.trained(batch)
        if self._keep_batches:
            self.batches.append(batch)
        tokens = int(batch.starts[-1])
        return StepReport(metrics={}, update_norm=1.0, num_tokens=tokens, busy_seconds=seconds)

    async def trained(self, step: int) -> None:
        self.service.trained(step)

    async def publish(self, update_norm: float) -> int:
        """Give every engine the next version."""
        self.version += 1
        for engine in self.engines:
            await engine.pause(self._pause_mode)
        if self._publish_seconds:
            await asyncio.sleep(self._publish_seconds)
        for engine in self.engines:
            engine.publish(self.version)
            await engine.resume()
        self.service.on_published(self.version)
        return self.version

    async def _evaluate(self, checkpoint: Checkpoint) -> EvalResult:
        await self.service.pause_submission()
        try:
            await asyncio.sleep(self._eval_seconds)
        finally:
            self.service.resume_submission()
        return EvalResult({})

    async def _evaluate_elsewhere(self, checkpoint: Checkpoint) -> EvalResult:
        await asyncio.sleep(self._eval_seconds)
        return EvalResult({})

    def _happen(self, event: EngineEvent) -> None:
        engine = self.engines[event.engine]
        if event.kind == "slow":
            engine.slowdown = event.factor
        else:
            {"die": engine.die, "revive": engine.revive, "hang": engine.hang}[event.kind]()
            if self._looking is None or self._looking.done():
                self._looking = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        """Look at the engines as the pool's monitor would, until the pool knows of each what it is: nothing changes before the next
        fault, and looks through a million virtual seconds take minutes."""
        settled = False
        while not settled:
            await asyncio.sleep(HEALTH_INTERVAL - asyncio.get_running_loop().time() % HEALTH_INTERVAL)
            await self.pool.look()
            settled = all([engine.alive == await engine.healthy() for engine in self.engines])

    async def _on_step(self, step: int, report: StepReport, times: StepTimes) -> None:
        self.service.check()
        self._recorder.step(step, times)


class _Numbered:
    """The pool, with each request told which sample of its group it is for: the first request of a prompt is for sample 0, and so
    on, from 0 again after a whole group. A request that the pool tries again stays the same."""

    def __init__(self, pool: EnginePool, group_size: int) -> None:
        self.engines = pool.engines
        self._generate = pool.generate
        self._group_size = group_size
        self._next: dict[int, int] = {}

    def generate(self, request: GenerateRequest) -> Coroutine[Any, Any, Completion]:
        prompt_id = request.affinity
        index = self._next.pop(prompt_id, 0)
        if index + 1 < self._group_size:
            self._next[prompt_id] = index + 1
        return self._generate(NumberedRequest(request.token_ids, request.params, prompt_id, index=index))


class _NothingDue:
    async def after_step(self, step: int, *, last: bool) -> None:
        return None

    async def settle(self) -> None:
        return None


class _Export(Snapshots):
    """An export that takes its time."""

    exports = True

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def take(self, step: int, version: int) -> Checkpoint:
        await asyncio.sleep(self._seconds)
        return await super().take(step, version)

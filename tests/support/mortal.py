"""A rollout actor in this process, around the real service, that dies at chosen moments; and the rest of a run around the real handle."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from asyncrl import RunFacts
from asyncrl.errors import AsyncrlError, TrainerLost
from asyncrl.evaluation.dispatcher import EvalDispatcher
from asyncrl.evaluation.records import Checkpoint, EvalResult, EvalSet
from asyncrl.evaluation.sets import RunEvalSets
from asyncrl.host import Host
from asyncrl.rollout.engine import GenerateRequest, ServerSpec
from asyncrl.rollout.pool import EnginePool
from asyncrl.rollout.record import HandedOut, Record
from asyncrl.rollout.saved_groups import Arrays, pack, unpack
from asyncrl.rollout.service import RolloutService
from asyncrl.rollout.takeover import Served
from asyncrl.runtime.engine_actor import EngineAddress
from asyncrl.runtime.recorder import Recorder, produced_again
from asyncrl.runtime.restarts import Restarts
from asyncrl.runtime.rollout_actor import Progress, RolloutSetup
from asyncrl.runtime.rollout_handle import RolloutHandle
from asyncrl.runtime.supervisor import Look, Supervisor
from asyncrl.samples import Completion, Prompt, SamplingParams
from asyncrl.simulation.clock import run_virtual
from asyncrl.simulation.engine import ScriptedEngine
from asyncrl.training.interfaces import StepReport, TrainingBatch
from asyncrl.training.loop import StepTimes, Stop, TrainingLoop
from ray.exceptions import RayActorError
from simulated import long_tail

ANSWER_SECONDS = 0.05
"""For which an answer is on its way; it is lost if the actor dies meanwhile."""
PROGRESS_SECONDS = 0.001
"""The same, of `progress`: so it overtakes others, and tells what they did although their answers are lost."""
SAVED_SECONDS = 1.0
"""The same, of `saved`, which has the most to tell: so others would overtake it."""
START_SECONDS = 3.0
HELD_OUT = EvalSet("held-out", [Prompt(index, np.array([index], np.int32)) for index in range(8)], SamplingParams(32), 2)
SETUP = RolloutSetup(Path("model"), 100, "drop", 1.0, 500.0, 1.0, 1000, 0, Path("logs"), 1.0, 0)


@dataclass(frozen=True)
class Save:
    """What a run goes back to."""

    step: int
    version: int
    saved: dict[str, Any]
    arrays: Arrays


@dataclass(frozen=True)
class Death:
    """In the `nth` call of a method (from 1, over all actors): before it does anything, or once it has, with its answer lost."""

    method: str
    nth: int
    answered: bool


class HalfUpdated(ScriptedEngine):
    """An engine whose weights are neither the old nor the new ones while they are loaded."""

    loading = False
    asked_unfit = 0

    async def generate(self, request: GenerateRequest) -> Completion:
        self.asked_unfit += self.loading
        return await super().generate(request)


class Actor:
    """One life of the rollout actor. Its methods are called as Ray's are."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._died = asyncio.get_running_loop().create_future()
        self._work: set[asyncio.Future[Any]] = set()

    def __getattr__(self, method: str) -> _Method:
        return _Method(self, method)

    def die(self) -> None:
        """All that it was doing ends, and nothing that it knew is left."""
        if not self._died.done():
            self._died.set_result(None)
            self._world.deaths += 1
            for work in self._work:
                work.cancel()
            if "_service" in vars(self):
                for task in [*self._service._loop._tasks, self._service._loop._loop_task]:
                    if task is not None:
                        task.cancel()
                self._service._gate.close()

    async def call(self, method: str, arguments: Sequence[Any]) -> Any:
        self._world.calls[method] += 1
        for answered in (False, True):
            if Death(method, self._world.calls[method], answered) in self._world.fatal:
                asyncio.get_running_loop().call_later(ANSWER_SECONDS / 2 if answered else 0.0, self.die)
        if self._died.done():
            raise RayActorError
        work = asyncio.ensure_future(self._perform(method, arguments))
        self._work.add(work)
        try:
            await asyncio.wait([work, self._died], return_when=asyncio.FIRST_COMPLETED)
            if self._died.done():
                raise RayActorError
            return work.result()
        finally:
            self._work.discard(work)
            work.cancel()

    async def _perform(self, method: str, arguments: Sequence[Any]) -> Any:
        answer = await getattr(self, f"_{method}")(*arguments)
        await asyncio.sleep({"progress": PROGRESS_SECONDS, "saved": SAVED_SECONDS}.get(method, ANSWER_SECONDS))
        return answer

    # What the actor does ----------------------------------------------------------------------------------------------------

    async def _open_task(self, model: Path, eval_sets: Sequence[str]) -> int:
        await asyncio.sleep(START_SECONDS)
        return 1

    async def _open(self, setup: RolloutSetup, addresses: Sequence[EngineAddress]) -> list[str]:
        self._connect(setup)
        return []

    def _connect(self, setup: RolloutSetup) -> None:
        world = self._world
        self._recorder = Recorder(world.facts, setup.trace_groups, setup.recorded, setup.traced)
        self._host = self._recorder.observing(world.make_host())
        self._pool = EnginePool(world.engines, health_interval=0)
        self._service = RolloutService(
            self._host,
            self._pool,
            world.facts,
            on_unused=world.on_unused,
            wait_warning=500.0,
        )

    async def _take_over(
        self, setup: RolloutSetup, addresses: Any, served: Served, record: Record, held: HandedOut | None, plugins: Any
    ) -> list[str]:
        self._connect(setup)
        for engine in self._world.engines:
            await engine.resume()
            engine.alive = engine.name not in served.doubtful and engine.version == served.version
        self._service.rebuild(record, held)
        self._service.on_published(served.version)
        return self._idle()

    async def _restore(self, saved: dict[str, Any], arrays: Arrays) -> None:
        self._service.restore(unpack(saved, arrays, lambda position: self._host.one("train_prompt")(position=position)))

    async def _saved(self) -> tuple[dict[str, Any], Arrays, Progress]:
        saved, arrays = pack(self._service.state())
        return saved | {"recorded": self._recorder.recorded, "plugins": []}, arrays, await self._progress()

    async def _start(self) -> Record:
        await self._service.start()
        return self._service.record()

    async def _take_batch(self, version: int, step: int) -> Any:
        batch, _ = await self._service.take_batch(version, step)
        return batch, (self._service.handed_out(step), self._service.record())

    async def _trained(self, step: int) -> Record:
        self._service.trained(step)
        return self._service.record()

    async def _evaluate(self, checkpoint: Checkpoint) -> EvalResult:
        assert {engine.version for engine in self._world.engines if engine.alive} <= {checkpoint.version}
        sets = RunEvalSets(
            [HELD_OUT],
            self._pool,
            produce=self._host.one("produce"),
            make_sampler=self._service.eval_sampler,
            max_concurrent_samples=self._world.facts.max_concurrent_samples,
        )
        await self._service.pause_submission()
        try:
            return await sets.run(self._pool)
        finally:
            self._service.resume_submission()

    async def _weights(self, call: str, version: int, path: Path, digest: str, mode: Any) -> list[str]:
        for engine in self._world.engines:
            await engine.pause(mode)
            engine.loading, engine.alive = True, False
            await asyncio.sleep(0.4)
            engine.publish(version)
            engine.loading, engine.alive = False, True
        for engine in self._world.engines:
            await engine.resume()
        self._service.on_published(version)
        return self._idle()

    def _idle(self) -> list[str]:
        return [engine.name for engine in self._world.engines if not engine.alive]

    async def _progress(self) -> Progress:
        self._service.check()
        return Progress([], [], self._recorder.take(), 0.0, 0.0, self._service.tokens_generated, self._service.record())

    async def _close(self, outcome: str) -> dict[str, Any]:
        await self._service.stop()
        self._world.still_open = set(self._service.ledger._open)
        return self._service.books()


class _Method:
    def __init__(self, actor: Actor, name: str) -> None:
        self._actor = actor
        self._name = name

    def remote(self, *arguments: Any, evaluates: bool = False) -> asyncio.Future[Any]:
        return asyncio.ensure_future(self._actor.call(self._name, arguments))

    def options(self, num_returns: int) -> _Batch:
        return _Batch(self)


class _Batch:
    """A call for two objects, of which the first is the caller's."""

    def __init__(self, method: _Method) -> None:
        self._method = method

    def remote(self, *arguments: Any) -> tuple[list[Any], asyncio.Future[Any]]:
        owned: list[Any] = []

        async def told() -> Any:
            batch, rest = await self._method.remote(*arguments)
            owned.append(batch)
            return rest

        return owned, asyncio.ensure_future(told())


@dataclass
class AlwaysWell:
    name: str

    async def look(self) -> Look:
        return "well"

    async def start(self) -> EngineAddress:
        raise AssertionError("it never died")


class World:
    """A run with real handle, supervisor, training loop and rollout service; the trainer sleeps, and engines are scripted.

    Attributes:
        calls: of each method of the rollout actors so far.
        told: the progress of each poll and save.
        trace: prompts of the groups that were recorded, in order.
        still_open: prompts that had not ended when the run did.
    """

    def __init__(
        self,
        facts: RunFacts,
        make_host: Callable[[], Host],
        seed: int,
        *,
        fatal: Sequence[Death] = (),
        times: Sequence[float] = (),
        on_unused: str = "drop",
        max_restarts: int = 100,
        train_seconds: float = 1.0,
        poll_seconds: float = 1.0,
        save_interval: int = 0,
        lost: Sequence[int] = (),
        make_evals: Callable[[World], EvalDispatcher] | None = None,
    ) -> None:
        self.facts, self.make_host, self.fatal, self.on_unused = facts, make_host, set(fatal), on_unused
        self.engines = [HalfUpdated(f"engine-{index}", script=long_tail(2 * seed + index, longest=32)) for index in range(2)]
        self.calls: Counter[str] = Counter()
        self.deaths = 0
        self.version = 0
        self.learnt = 0
        self.batches: list[TrainingBatch] = []
        self.told: list[Progress] = []
        self.trace: list[int] = []
        self.books: dict[str, Any] = {}
        self.still_open: set[int] = set()
        self.restarts = Restarts(max_restarts)
        self._times = times
        self._train_seconds = train_seconds
        self._poll_seconds = poll_seconds
        self._save_interval = save_interval
        self._lost = list(lost)
        self._save: Save | None = None
        self._make_evals = make_evals
        self._actors: list[Actor] = []

    def run(self) -> World:
        run_virtual(self._main(), limit=50_000.0)
        return self

    async def _main(self) -> None:
        clock = asyncio.get_running_loop()
        for at in self._times:
            clock.call_at(clock.time() + at, self._strike)
        while True:
            try:
                return await self._attempt()
            except TrainerLost:
                self._go_back()

    def _strike(self) -> None:
        """Kill the actor, unless it is only starting."""
        if self.handle._actor.lasts:
            self._actors[-1].die()

    def _go_back(self) -> None:
        """To the newest checkpoint, or the beginning, as `Resumption.clear` does."""
        save = self._save
        step, self.version = (save.step, save.version) if save else (0, 0)
        self.learnt = 0
        self.batches = [batch for batch in self.batches if batch.step <= step]
        del self.trace[save.saved["recorded"] if save else 0 :]
        for engine in self.engines:
            engine.version, engine.loading, engine.alive = self.version, False, True

    async def _attempt(self) -> None:
        save = self._save
        self.handle = RolloutHandle(self._make, self.restarts, kill=_kill)
        supervisor = Supervisor(
            [AlwaysWell(engine.name) for engine in self.engines], self.handle, self, max_restarts=0, hang_timeout=30.0
        )
        self.handle.on_anew = supervisor.rollout_anew
        evals = self._make_evals(self) if self._make_evals else self
        await self.handle.open_task(Path("model"), (), 100.0, evaluates=False)
        traced = produced_again(self.trace, save.saved["ledger"]) if save else frozenset()
        setup = replace(SETUP, version=self.version, recorded=len(self.trace), traced=traced)
        await self.handle.open(setup, [EngineAddress(engine.name, ServerSpec((), "")) for engine in self.engines], 100.0)
        if save:
            await self.handle.restore(save.saved | {"ledger": save.saved["ledger"] | {"version": save.version}}, save.arrays)
        for engine in self.engines:
            await engine.resume()
        loop = TrainingLoop(
            steps=self.facts.steps,
            publish_interval=self.facts.publish_interval,
            rollout=self.handle,
            trainer=self,
            publisher=supervisor,
            engines=supervisor,
            evals=evals,
            checkpoints=_Checkpoints(self),
            on_step=self._reported,
            stop=Stop(),
            done=save.step if save else 0,
        )
        await self.handle.start()
        supervisor.start()
        poll = asyncio.ensure_future(self._poll())
        try:
            await loop.run()
        finally:
            poll.cancel()
            await asyncio.gather(poll, return_exceptions=True)
            await supervisor.close()
            if isinstance(evals, EvalDispatcher):
                await evals.close()
            self.books = await self.handle.close("completed")

    def _make(self) -> Actor:
        self._actors.append(Actor(self))
        return self._actors[-1]

    async def _poll(self) -> None:
        with contextlib.suppress(AsyncrlError):
            while True:
                await asyncio.sleep(self._poll_seconds)
                self._tell(await self.handle.progress())

    def _tell(self, progress: Progress) -> None:
        self.told.append(progress)
        self.trace += [prompt_id for prompt_id, *_ in progress.finished]

    async def save(self, step: int) -> None:
        """Save the run after a step, if one is due."""
        if self._save_interval and step % self._save_interval == 0:
            saved, arrays, progress = await self.handle.saved()
            self._tell(progress)
            self._save = Save(step, self.version, saved, arrays)

    # The loop's other parts -------------------------------------------------------------------------------------------------

    async def train(self, batch: list[TrainingBatch]) -> StepReport:
        await asyncio.sleep(self._train_seconds)
        if batch[0].step in self._lost:
            self._lost.remove(batch[0].step)
            raise TrainerLost("a rank died")
        self.batches += batch
        self.learnt += 1
        return StepReport(metrics={}, update_norm=1.0, num_tokens=1, busy_seconds=1.0)

    async def publish(self, update_norm: float) -> int:
        return await self._to(self.version + 1)

    async def bring_up(self) -> int:
        return await self._to(self.version + (self.learnt > 0))

    async def _to(self, version: int) -> int:
        await self.handle.load_from_disk(version, Path("v"), f"digest-{version}", "retract")
        self.version, self.learnt = version, 0
        return version

    def forget_members(self) -> None:
        return None

    async def before_training(self, version: int) -> None:
        return None

    async def after_step(self, step: int, version: int = 0, *, lag_steps: int = 0, last: bool) -> None:
        return None

    async def resumed(self, step: int, version: int, *, last: bool) -> None:
        return None

    async def settle(self) -> None:
        return None

    async def _reported(self, step: int, report: StepReport, times: StepTimes) -> None:
        return None


@dataclass
class _Checkpoints:
    """The checkpoints of a world, which are whole at once."""

    world: World

    async def after_step(self, step: int, *, last: bool) -> None:
        await self.world.save(step)

    async def settle(self) -> None:
        return None


async def _kill(actor: Actor) -> None:
    actor.die()

"""Engines that die and hang under the virtual clock: started again, given the weights before any request, and nothing is lost."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from asyncrl.errors import EngineError, EnginesLost, PublicationError
from asyncrl.rollout.engine import GenerateRequest, ServerSpec
from asyncrl.rollout.pool import EnginePool
from asyncrl.rollout.service import RolloutService
from asyncrl.runtime.engine_actor import EngineAddress
from asyncrl.runtime.supervisor import Look, Supervisor
from asyncrl.samples import Completion, SamplingParams
from asyncrl.simulation.clock import run_virtual
from asyncrl.simulation.engine import ScriptedEngine
from asyncrl.training.interfaces import StepReport
from asyncrl.training.loop import StepTimes, Stop, TrainingLoop
from simulated import facts, host, long_tail

START_SECONDS = 20.0
LOOK_TIMEOUT = 10.0
ANSWERS_SECONDS = 7.0
PUBLISH_SECONDS = 2.0
TRAIN_SECONDS = 1.0
LIMIT = 5_000.0
REQUEST = GenerateRequest(np.array([1], np.int32), SamplingParams(8), 0)


class Engine(ScriptedEngine):
    """Serves version 0 after each start. `fit`: an update has reached its present server; `trusted`: the client thinks so."""

    def __init__(self, name: str) -> None:
        super().__init__(name, slots=6, script=long_tail(1))
        self.fit = self.trusted = True
        self.life = 0
        self.asked_unfit = 0

    async def generate(self, request: GenerateRequest) -> Completion:
        self.asked_unfit += not self.fit
        return await super().generate(request)

    async def healthy(self) -> bool:
        return self.trusted and await super().healthy()


@dataclass
class Server:
    """`fail` is how many of the next starts fail."""

    engine: Engine
    fail: int = 0
    starts: int = 0

    @property
    def name(self) -> str:
        return self.engine.name

    async def look(self) -> Look:
        if self.engine._dead:
            return "dead"
        if self.engine._hung:
            await asyncio.sleep(LOOK_TIMEOUT)
            return "silent"
        return "well"

    async def start(self) -> EngineAddress:
        self.engine.die()
        await asyncio.sleep(START_SECONDS)
        self.starts += 1
        if self.fail:
            self.fail -= 1
            raise EngineError("no memory left on the device")
        self.engine.revive()
        self.engine.publish(0)
        self.engine.fit = False
        await asyncio.sleep(ANSWERS_SECONDS)  # it answers already, at the old address, and nobody was told
        return EngineAddress(self.name, ServerSpec((), ""))


@dataclass
class World:
    """Every part that the loop and the supervisor talk to. `reached` are the engines of each publication."""

    engines: list[Engine]
    service: RolloutService
    version: int = 0
    learnt: int = 0
    batches: list[Any] = field(default_factory=list)
    reached: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    evaluates: EnginePool | None = None
    evaluated: list[Any] = field(default_factory=list)

    async def take_batch(self, version: int, step: int) -> Any:
        batch, _ = await self.service.take_batch(version, step)
        return batch

    async def train(self, batch: Any) -> StepReport:
        await asyncio.sleep(TRAIN_SECONDS)
        self.batches.append(batch)
        self.learnt += 1
        return StepReport(metrics={}, update_norm=1.0, num_tokens=1, busy_seconds=TRAIN_SECONDS)

    async def trained(self, step: int) -> None:
        self.service.trained(step)

    async def publish(self, update_norm: float) -> int:
        return await self._to(self.version + 1)

    async def bring_up(self) -> int:
        return await self._to(self.version + (self.learnt > 0))

    async def _to(self, version: int) -> int:
        members = {engine: engine.life for engine in self.engines if not engine._dead}
        for engine in members:
            await engine.pause("retract")
        await asyncio.sleep(PUBLISH_SECONDS)
        reached = [engine for engine, life in members.items() if engine.life == life and not engine._dead and not engine._hung]
        for engine in members:
            await engine.resume()
        if not reached:
            raise PublicationError("no engine is left to publish to")
        for engine in self.engines:
            engine.trusted = engine.alive = engine in reached
            if engine.trusted:
                engine.publish(version)
                engine.fit = True
        self.version, self.learnt = version, 0
        self.reached.append((version, tuple(engine.name for engine in reached)))
        self.service.on_published(version)
        return version

    def forget_members(self) -> None:
        return None

    async def engine_lost(self, name: str, why: str) -> list[str]:
        engine = next(engine for engine in self.engines if engine.name == name)
        engine.life += 1
        engine.alive = engine.trusted = False
        return [engine.name for engine in self.engines if not engine.alive]

    async def engine_back(self, address: EngineAddress) -> None:
        await self.engine_lost(address.name, "")

    # The loop's other parts -----------------------------------------------------------------------------------------------

    async def before_training(self, version: int) -> None:
        return None

    async def after_step(self, step: int, version: int = 0, *, lag_steps: int = 0, last: bool) -> None:
        if self.evaluates is not None and version:  # else it is a checkpoint
            answers = [self.evaluates.generate(REQUEST) for _ in range(4)]
            self.evaluated += [answer.spans for answer in await asyncio.gather(*answers)]

    async def settle(self) -> None:
        return None


@dataclass
class Outcome:
    world: World
    servers: list[Server]
    supervisor: Supervisor
    seconds: float

    def check(self, steps: int) -> None:
        """No request went to an engine without the weights, all tokens say who made them, and every prompt is accounted for."""
        assert [engine.asked_unfit for engine in self.world.engines] == [0] * len(self.world.engines)
        assert len(self.world.batches) == steps
        ids = [int(prompt_id) for batch in self.world.batches for prompt_id in batch.prompt_ids]
        assert len(ids) == len(set(ids))
        for batch in self.world.batches:
            made = batch.versions[batch.loss_mask]
            assert 0 <= made.min() <= made.max() <= batch.version
        books = self.world.service.books()
        assert books["issued"] == books["trained"] + sum(books["dropped"].values()) + books["unfinished"]


def run(
    *events: tuple[float, int, str],
    engines: int = 2,
    steps: int = 8,
    interval: int = 1,
    max_restarts: int = 3,
    fail: tuple[int, ...] = (0, 0),
    evaluates: bool = False,
    kept: bool = False,
) -> Outcome:
    """Train while engines go through `events`: (seconds, engine, die or hang). `kept` engines serve what a lost trainer had taught them."""

    async def main() -> Outcome:
        clock = asyncio.get_running_loop()
        made = [Engine(f"engine-{index}") for index in range(engines)]
        pool = EnginePool(made, lost_timeout=float("inf"), warn_interval=1e9)
        run_facts = facts(steps=steps, publish_interval=interval)
        service = RolloutService(host(run_facts), pool, run_facts, on_unused="retry", wait_warning=500.0)
        world = World(made, service, evaluates=pool if evaluates else None)
        servers = [Server(engine, fail=count) for engine, count in zip(made, fail, strict=False)]
        supervisor = Supervisor(servers, world, world, max_restarts=max_restarts, hang_timeout=30.0)
        if kept:
            supervisor.leave_out([engine.name for engine in made])
        for engine in made if kept else ():
            engine.publish(7)
            engine.fit = engine.trusted = engine.alive = False

        async def reported(step: int, report: StepReport, times: StepTimes) -> None:
            service.check()

        loop = TrainingLoop(
            steps=steps,
            publish_interval=interval,
            rollout=world,
            trainer=world,
            publisher=supervisor,
            engines=supervisor,
            evals=world,
            checkpoints=world,
            on_step=reported,
            stop=Stop(),
        )
        for at, index, kind in events:
            clock.call_at(clock.time() + at, getattr(made[index], kind))
        began = clock.time()
        await service.start()
        supervisor.start()
        try:
            await loop.run()
        finally:
            await supervisor.close()
            await service.stop()
            await pool.close()
        return Outcome(world, servers, supervisor, clock.time() - began)

    return run_virtual(main(), limit=LIMIT)


@pytest.mark.parametrize("kind", ["die", "hang"])
@pytest.mark.parametrize("engines", [1, 2])
@pytest.mark.parametrize("at", [3.0, 4.5])
def test_an_engine_that_fails_at_any_moment_comes_back_with_the_weights(engines: int, kind: str, at: float) -> None:
    outcome = run((at, 0, kind), engines=engines, steps=25)
    outcome.check(25)
    assert outcome.servers[0].starts == 1
    assert outcome.supervisor.metrics.drain() == {"engines/restarts": {"engine-0": 1}}
    assert outcome.world.reached[-1][1] == tuple(engine.name for engine in outcome.world.engines)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("interval", [1, 3])
def test_whatever_happens_when_no_request_goes_to_an_engine_without_the_weights(seed: int, interval: int) -> None:
    rng = random.Random(seed)
    events = [(rng.uniform(0.0, 200.0), rng.randrange(2), rng.choice(["die", "hang"])) for _ in range(6)]
    run(*events, steps=30, interval=interval, max_restarts=20, fail=(seed % 2, 0)).check(30)


@pytest.mark.parametrize("events", [(), ((0.5, 0, "die"),), ((1.0, 0, "hang"), (1.0, 1, "die"))])
def test_engines_that_are_kept_when_the_run_goes_back_get_its_weights_before_any_request(events: tuple[Any, ...]) -> None:
    outcome = run(*events, steps=8, kept=True)
    outcome.check(8)
    assert outcome.world.reached[0][0] == 0


def test_the_other_engine_generates_while_one_is_started_again() -> None:
    outcome = run((3.0, 0, "die"), steps=8)
    outcome.check(8)
    assert ("engine-1",) in [names for _, names in outcome.world.reached]


def test_an_engine_that_comes_back_while_the_trainer_has_not_learnt_gets_the_present_version() -> None:
    outcome = run((0.5, 0, "die"), engines=1, steps=3)
    outcome.check(3)
    assert outcome.world.reached[0] == (0, ("engine-0",))
    assert [version for version, _ in outcome.world.reached] == [0, 1, 2, 3]


def test_between_two_publications_the_only_engine_gets_the_newest_weights_as_a_version_of_their_own() -> None:
    outcome = run((6.0, 0, "die"), engines=1, steps=6, interval=6)
    outcome.check(6)
    assert [version for version, _ in outcome.world.reached] == [1, 2]
    assert {int(batch.version) for batch in outcome.world.batches} == {0, 1}


def test_between_two_publications_an_engine_waits_for_the_next_while_another_lives() -> None:
    outcome = run((6.0, 0, "die"), steps=30, interval=30)
    outcome.check(30)
    assert outcome.world.reached == [(1, ("engine-0", "engine-1"))]


@pytest.mark.parametrize("at", [1.0, 5.0, 9.0, 13.0])
def test_an_evaluation_on_the_only_engine_goes_on_once_it_is_back(at: float) -> None:
    outcome = run((at, 0, "die"), engines=1, steps=4, evaluates=True)
    outcome.check(4)
    assert len(outcome.world.evaluated) == 16
    assert outcome.servers[0].starts == 1


def test_a_start_that_fails_is_tried_again() -> None:
    outcome = run((3.0, 0, "die"), engines=1, fail=(2,))
    outcome.check(8)
    assert outcome.servers[0].starts == 3


def test_the_run_goes_on_without_an_engine_that_does_not_come_back() -> None:
    outcome = run((3.0, 0, "die"), fail=(9, 0), steps=200)
    outcome.check(200)
    assert outcome.servers[0].starts == 3
    assert outcome.world.reached[-1][1] == ("engine-1",)


@pytest.mark.parametrize("engines", [1, 2])
def test_the_run_ends_with_the_last_words_of_each_when_no_engine_comes_back(engines: int) -> None:
    with pytest.raises(EnginesLost, match="engine-0: no memory left on the device") as error:
        run(*((3.0, index, "die") for index in range(engines)), engines=engines, fail=(9, 9))
    assert "max_engine_restarts" in str(error.value)


def test_no_restart_is_made_when_none_is_allowed() -> None:
    with pytest.raises(EnginesLost, match="its server died"):
        run((3.0, 0, "die"), engines=1, max_restarts=0)


def test_a_publication_that_fails_while_all_engines_are_well_ends_the_run() -> None:
    class Refused(World):
        async def publish(self, update_norm: float) -> int:
            raise PublicationError("digest is another")

    async def main() -> None:
        engine = Engine("engine-0")
        world = Refused([engine], None)  # type: ignore[arg-type]
        supervisor = Supervisor([Server(engine)], world, world, max_restarts=3, hang_timeout=30.0)
        await supervisor.publish(1.0)

    with pytest.raises(PublicationError, match="digest is another"):
        run_virtual(main(), limit=LIMIT)


def test_what_is_waited_for_is_cancelled_with_the_wait() -> None:
    async def main() -> bool:
        engine = Engine("engine-0")
        world = World([engine], None)  # type: ignore[arg-type]
        supervisor = Supervisor([Server(engine)], world, world, max_restarts=3, hang_timeout=30.0)
        waited = asyncio.get_running_loop().create_future()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(supervisor.beside(waited, False), 5.0)
        return waited.cancelled()

    assert run_virtual(main(), limit=LIMIT)

"""The training loop takes, trains, publishes and runs what is due, in this order."""

from __future__ import annotations

from typing import Any

from asyncrl.training.interfaces import StepReport
from asyncrl.training.loop import StepTimes, Stop, TrainingLoop


class World:
    """Every part of the loop at once; writes down what happens."""

    def __init__(self) -> None:
        self.version = 0
        self.told: list[Any] = []

    async def take_batch(self, version: int, step: int) -> str:
        self.told.append(("take", version))
        return f"batch {step}"

    async def train(self, batch: str) -> StepReport:
        self.told.append(("train", batch))
        return StepReport(metrics={}, update_norm=1.5, num_tokens=1, busy_seconds=0.0)

    async def trained(self, step: int) -> None:
        self.told.append(("trained", step))

    async def publish(self, update_norm: float) -> int:
        self.version += 1
        self.told.append(("publish", self.version, update_norm))
        return self.version

    async def on_step(self, step: int, report: StepReport, times: StepTimes) -> None:
        self.told.append(("step", step))


class Due:
    """Evals or checkpoints."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name

    async def before_training(self, version: int) -> None:
        self.world.told.append((f"{self.name} before", version))

    async def after_step(self, step: int, version: int = -1, *, lag_steps: int = 0, last: bool) -> None:
        self.world.told.append((self.name, step, last))

    async def resumed(self, step: int, version: int, *, last: bool) -> None:
        self.world.told.append((f"{self.name} resumed", step, version, last))

    async def settle(self) -> None:
        self.world.told.append((f"{self.name} settled",))


def loop(world: World, *, steps: int, publish_interval: int = 1, stop: Stop | None = None) -> TrainingLoop:
    return TrainingLoop(
        steps=steps,
        publish_interval=publish_interval,
        rollout=world,
        trainer=world,
        publisher=world,
        evals=Due(world, "eval"),
        checkpoints=Due(world, "save"),
        on_step=world.on_step,
        stop=stop or Stop(),
    )


async def test_a_step_takes_trains_publishes_saves_and_evaluates() -> None:
    world = World()
    assert await loop(world, steps=1).run() == 1
    assert world.told == [
        ("eval before", 0),
        ("take", 0),
        ("train", "batch 1"),
        ("trained", 1),
        ("publish", 1, 1.5),
        ("save", 1, True),
        ("eval", 1, True),
        ("step", 1),
        ("save settled",),
        ("eval settled",),
    ]


async def test_the_trainer_takes_for_the_version_it_is_about_to_improve() -> None:
    world = World()
    await loop(world, steps=4, publish_interval=2).run()
    assert [told[1] for told in world.told if told[0] == "take"] == [0, 0, 1, 1]


async def test_a_publication_reports_the_change_of_every_step_since_the_last_one() -> None:
    world = World()
    await loop(world, steps=4, publish_interval=2).run()
    assert [told for told in world.told if told[0] == "publish"] == [("publish", 1, 3.0), ("publish", 2, 3.0)]


async def test_a_stop_finishes_the_step_saves_and_ends() -> None:
    world, stop = World(), Stop()

    async def stop_in_step_2(step: int, report: StepReport, times: StepTimes) -> None:
        world.told.append(("step", step))
        stop.requested = step == 1

    running = loop(world, steps=10, stop=stop)
    running._on_step = stop_in_step_2
    assert await running.run() == 2
    assert ("save", 2, True) in world.told
    assert ("eval", 2, True) in world.told


async def test_the_last_step_is_published_whatever_the_interval() -> None:
    world = World()
    await loop(world, steps=4, publish_interval=3).run()
    assert [told for told in world.told if told[0] == "publish"] == [("publish", 1, 4.5), ("publish", 2, 1.5)]

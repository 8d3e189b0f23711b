"""The training loop: take a batch, train, publish, run what is due. It knows no plugin, no device and no Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from asyncrl.training.interfaces import StepReport

T = TypeVar("T")


class Rollout(Protocol):
    """The rollout side as the loop sees it. `Batch` is opaque here: a handle that the trainer understands."""

    async def take_batch(self, version: int, step: int) -> Any: ...

    async def trained(self, step: int) -> None: ...


class Trainer(Protocol):
    async def train(self, batch: Any) -> StepReport: ...


class Publisher(Protocol):
    @property
    def version(self) -> int: ...

    async def publish(self, update_norm: float) -> int: ...


class Engines(Protocol):
    async def beside(self, wait: Awaitable[T], behind: bool) -> T:
        """Await `wait`, and meanwhile bring engines that come back to the present weights; `behind` says that these are newer than
        what was published."""
        ...


class LastingEngines:
    """Engines that never fail, or come back with their weights."""

    async def beside(self, wait: Awaitable[T], behind: bool) -> T:
        return await wait


class Evals(Protocol):
    async def before_training(self, version: int) -> None: ...

    async def after_step(self, step: int, version: int, *, lag_steps: int, last: bool) -> None: ...

    async def resumed(self, step: int, version: int, *, last: bool) -> None: ...

    async def settle(self) -> None: ...


class Checkpoints(Protocol):
    async def after_step(self, step: int, *, last: bool) -> None: ...

    async def settle(self) -> None: ...


PARTS = ("wait", "train", "publish", "checkpoint", "evaluation")


@dataclass(frozen=True)
class StepTimes:
    """Seconds of one step by what they were spent on."""

    wait: float
    train: float
    publish: float
    checkpoint: float
    evaluation: float
    total: float


@dataclass
class Stop:
    """Set from outside to end the loop after the current step."""

    requested: bool = False


@dataclass(frozen=True)
class Trained:
    """A step as far as it has come; with `published`, the last step after which the weights were published."""

    step: int
    report: StepReport
    times: StepTimes
    published: int


class TrainingLoop:
    """Train `steps` batches.

    Args:
        on_step: told of each finished step, after what was due has run.
        engines: what the loop waits for may need an engine that has to be given weights first.
        done: steps that were trained before, of a run that goes on. Its present weights are published.

    Attributes:
        trained: the step that was trained last, for who saves it before it is finished.
    """

    def __init__(
        self,
        *,
        steps: int,
        publish_interval: int,
        rollout: Rollout,
        trainer: Trainer,
        publisher: Publisher,
        evals: Evals,
        checkpoints: Checkpoints,
        on_step: Callable[[int, StepReport, StepTimes], Awaitable[None]],
        stop: Stop,
        done: int = 0,
        engines: Engines | None = None,
    ) -> None:
        self.trained: Trained | None = None
        self._done = done
        self._steps = steps
        self._publish_interval = publish_interval
        self._rollout = rollout
        self._trainer = trainer
        self._publisher = publisher
        self._evals = evals
        self._checkpoints = checkpoints
        self._on_step = on_step
        self._stop = stop
        self._engines = engines or LastingEngines()
        self._published = self._learnt = done  # steps: the last that was published, and the last that was trained
        self._update_norm = 0.0

    async def run(self) -> int:
        """Return the number of steps trained: all of them, or fewer after a stop was asked for."""
        if not self._done:
            await self._wait(self._evals.before_training(self._publisher.version))
        else:
            await self._wait(self._evals.resumed(self._done, self._publisher.version, last=self._done == self._steps))
        step = self._done
        for step in range(self._done + 1, self._steps + 1):
            clock = _Stopwatch()
            batch = await self._wait(self._rollout.take_batch(self._publisher.version, step))
            clock.lap("wait")
            report = await self._trainer.train(batch)
            await self._rollout.trained(step)
            self._learnt = step
            self._update_norm += report.update_norm
            clock.lap("train")
            last = step == self._steps or self._stop.requested
            if last or step % self._publish_interval == 0:
                await self._publisher.publish(self._update_norm)
                self._update_norm, self._published = 0.0, step
            clock.lap("publish")
            self.trained = Trained(step, report, clock.times(), self._published)
            await self._checkpoints.after_step(step, last=last)
            clock.lap("checkpoint")
            lag = step - self._published
            await self._wait(self._evals.after_step(step, self._publisher.version, lag_steps=lag, last=last))
            clock.lap("evaluation")
            await self._on_step(step, report, clock.times())
            if last:
                break
        await self._checkpoints.settle()
        await self._wait(self._evals.settle())
        return step

    async def _wait(self, something: Awaitable[T]) -> T:
        """Wait for something that may need engines; those that come back meanwhile get the present weights, published or not."""
        version = self._publisher.version
        result = await self._engines.beside(something, self._published < self._learnt)
        if self._publisher.version != version:
            self._update_norm, self._published = 0.0, self._learnt
        return result


class _Stopwatch:
    def __init__(self) -> None:
        self._last = self._start = asyncio.get_running_loop().time()
        self._laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = asyncio.get_running_loop().time()
        self._laps[name] = now - self._last
        self._last = now

    def times(self) -> StepTimes:
        return StepTimes(**{part: self._laps.get(part, 0.0) for part in PARTS}, total=self._last - self._start)

"""The rollout actor as the controller's parts see it: the training loop's `Rollout` and the publisher's engine side.

It outlives the actor. What a new one needs is kept here, and small: how it was opened, where the engines answer and what they serve, the
books as they were told last, and what is booked of the batch that the trainer has.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from asyncrl.authoring import RunFacts
from asyncrl.errors import ActorLost
from asyncrl.evaluation.records import Checkpoint, EvalResult
from asyncrl.metrics import Axis, Counter, MetricSet
from asyncrl.plugins import PluginSpec
from asyncrl.rollout.engine import PauseMode
from asyncrl.rollout.record import HandedOut, Record
from asyncrl.rollout.saved_groups import Arrays
from asyncrl.rollout.takeover import Served
from asyncrl.runtime.cluster import Cluster, ask
from asyncrl.runtime.engine_actor import EngineAddress
from asyncrl.runtime.lasting_actor import LastingActor, kill
from asyncrl.runtime.recorder import produced_again
from asyncrl.runtime.restarts import Restarts
from asyncrl.runtime.rollout_actor import Progress, RolloutActor, RolloutSetup
from asyncrl.training.interfaces import WeightGroup, WeightManifest

log = logging.getLogger("asyncrl")

WHO = "the rollout actor"
CLOSE_SECONDS = 20.0


class RolloutHandleMetrics(MetricSet):
    """Logged as ``rollout/…``."""

    restarts = Counter("Times the rollout actor was made anew", unit="restarts", axis=Axis.WALL_SECONDS)


def rollout_maker(cluster: Cluster, specs: Sequence[PluginSpec], facts: RunFacts) -> Callable[[], Any]:
    """Return what makes a rollout actor."""
    remote = ray.remote(RolloutActor).options(**cluster.here(), max_concurrency=1000)
    return lambda: remote.remote(list(specs), facts)


class RolloutHandle:
    """Calls the actor; its exceptions arrive as themselves. A death before `start` is one of them; after it, the actor is made anew and
    called again, unless a method says otherwise.

    Args:
        make: returns a new actor.
        last_words: returns what the process of this id said at last.
        kill: see `LastingActor`.

    Attributes:
        left_out: engines that get no requests until a first update has reached them.
        on_anew: called with the engines that get no requests until an update has reached them, each time there is a new actor.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        restarts: Restarts,
        *,
        last_words: Callable[[int], str] = lambda process: "",
        kill: Callable[[Any], Awaitable[None]] = kill,
    ) -> None:
        self.metrics = RolloutHandleMetrics("rollout")
        self.on_anew: Callable[[list[str]], None] = lambda idle: None
        self.left_out: list[str] = []
        self._process = 0
        self._actor = LastingActor(WHO, make, self._take_over, restarts, last_words=lambda: last_words(self._process), kill=kill)
        self._served = Served(0, "")
        self._plugins: list[dict[str, Any]] = []
        self._record: Record | None = None
        self._telling = asyncio.Lock()  # one answer after the other: what they tell is written in this order
        self._held: HandedOut | None = None  # by the trainer
        self._busy = self._paused = 0.0  # seconds, over all actors so far
        self._busy_before = self._paused_before = 0.0  # of those that died

    # To the first batch ---------------------------------------------------------------------------------------------------

    async def open_task(self, model: Path, eval_sets: Sequence[str], timeout: float, *, evaluates: bool) -> None:
        self._timeout = timeout
        self._open_task: Callable[[Any], Awaitable[int]] = lambda actor: actor.open_task.remote(
            model, tuple(eval_sets), evaluates=evaluates
        )
        self._process = await self._actor.once(self._open_task, "the task to open", timeout)

    async def close_task(self) -> None:
        """Close the task of an actor that is never opened, and end the actor."""
        try:
            await self._actor.once(lambda actor: actor.close_task.remote(), timeout=CLOSE_SECONDS)
        finally:
            await self._actor.end()

    async def open(self, setup: RolloutSetup, addresses: Sequence[EngineAddress], timeout: float) -> None:
        self._setup = setup
        self._addresses = {address.name: address for address in addresses}
        left_out: list[str] = await self._actor.once(lambda actor: actor.open.remote(setup, list(addresses)), timeout=timeout)
        self.left_out = left_out
        self._served = Served(setup.version, setup.digest, doubtful=frozenset(left_out))

    async def restore(self, saved: dict[str, Any], arrays: Arrays) -> None:
        self._plugins = saved["plugins"]
        await self._actor.once(lambda actor: actor.restore.remote(saved, arrays))

    async def start(self) -> None:
        self._note(await self._actor.once(lambda actor: actor.start.remote()))
        self._actor.lasts = True

    async def _take_over(self, actor: Any) -> None:
        """Have a new actor go on where the former was lost."""
        self.metrics.restarts.add()
        self._process = 0
        self._busy_before, self._paused_before = self._busy, self._paused
        record = self._record
        assert record is not None
        if self._held is not None and self._held.step not in record.with_trainer:
            self._held = None  # it was booked as trained, and the answer was lost
        self._process = await ask(self._open_task(actor), "the task to open", self._timeout)
        arguments = (self._setup, list(self._addresses.values()), self._served, record, self._held, self._plugins)
        idle = await ask(actor.take_over.remote(*arguments), WHO, self._timeout)
        self._note(await ask(actor.start.remote(), WHO, self._timeout))
        self.on_anew(idle)
        open_prompts = record.books["unfinished"] - (len(self._held.prompt_ids) if self._held else 0)
        log.warning("%s is there again; %d prompts that were in flight or buffered are issued again", WHO, open_prompts)

    # For the training loop ------------------------------------------------------------------------------------------------

    async def take_batch(self, version: int, step: int) -> Any:
        """Return a reference to the batch. The controller owns it, so it outlives the actor."""
        batch: Any = None

        def call(actor: Any) -> Any:
            nonlocal batch
            batch, told = actor.take_batch.options(num_returns=2).remote(version, step)
            return told

        held, record = await self._actor.again(call, told=f"the batch of step {step}")
        self._held = held
        self._note(record)
        return batch

    async def trained(self, step: int) -> None:
        while True:
            await self._actor.there()
            if self._held is None:  # an actor that died had booked it, and its answer was lost
                return
            with contextlib.suppress(ActorLost):
                self._note(await self._actor.once(lambda actor: actor.trained.remote(step)))
                self._held = None

    async def evaluate(self, checkpoint: Checkpoint) -> EvalResult:
        """Raises `ActorLost` when the actor dies meanwhile: it may have been the evaluation that killed it."""
        what = f"the evaluation of version {checkpoint.version}"
        return await self._actor.once(lambda actor: actor.evaluate.remote(checkpoint), what)

    # For the publisher ----------------------------------------------------------------------------------------------------

    async def members(self) -> dict[str, int]:
        members: dict[str, int] = await self._actor.again(lambda actor: actor.weights.remote("members"))
        return members

    async def take_packed(self) -> bool:
        packed: bool = await self._actor.again(lambda actor: actor.weights.remote("take_packed"))
        return packed

    async def load_from_disk(self, version: int, path: Path, digest: str, mode: PauseMode) -> None:
        self._begin_update()
        call = ("load_from_disk", version, path, digest, mode)
        self._end_update(version, digest, await self._actor.again(lambda actor: actor.weights.remote(*call)))

    async def join_weight_group(self, group: WeightGroup) -> None:
        """Raises `ActorLost` when the actor dies meanwhile: the trainer's side must be told."""
        self._served = replace(self._served, group=group.name)
        await self._actor.once(lambda actor: actor.weights.remote("join_weight_group", group))

    async def receive(self, version: int, manifest: WeightManifest, mode: PauseMode) -> None:
        """Raises `ActorLost` when the actor dies meanwhile: the trainer's side must be told."""
        self._begin_update()
        call = ("receive", version, manifest, mode)
        self._end_update(version, manifest.digest, await self._actor.once(lambda actor: actor.weights.remote(*call)))

    async def stop_update(self, reason: str) -> None:
        await self._actor.again(lambda actor: actor.weights.remote("stop_update", reason))

    async def leave_weight_group(self) -> None:
        await self._actor.again(lambda actor: actor.weights.remote("leave_weight_group"))
        self._served = replace(self._served, group="")

    async def settle(self) -> None:
        await self._actor.again(lambda actor: actor.weights.remote("settle"))

    def _begin_update(self) -> None:
        self._served = replace(self._served, doubtful=frozenset(self._addresses))

    def _end_update(self, version: int, digest: str, unreached: Sequence[str]) -> None:
        self._served = replace(self._served, version=version, digest=digest, doubtful=frozenset(unreached))

    # For the supervisor ---------------------------------------------------------------------------------------------------

    async def engine_lost(self, name: str, why: str) -> list[str]:
        self._served = replace(self._served, doubtful=self._served.doubtful | {name})
        idle: list[str] = await self._actor.again(lambda actor: actor.engine_lost.remote(name, why))
        return idle

    async def engine_back(self, address: EngineAddress) -> None:
        self._addresses[address.name] = address
        await self._actor.again(lambda actor: actor.engine_back.remote(address))

    # For the reporter and checkpoints -------------------------------------------------------------------------------------

    async def progress(self) -> Progress:
        """What an actor that died had not told is lost, but for the books; running totals go on."""
        async with self._telling:
            return self._told(await self._actor.again(lambda actor: actor.progress.remote()))

    async def saved(self) -> tuple[dict[str, Any], Arrays, Progress]:
        async with self._telling:
            saved, arrays, progress = await self._actor.again(lambda actor: actor.saved.remote())
            self._plugins = saved["plugins"]
            return saved, arrays, self._told(progress)

    async def close(self, outcome: str) -> dict[str, Any]:
        """Stop generating and return the final books; the actor is ended in any case. One that is dead is not made anew for it."""
        try:
            if await self._actor.let_go():
                books: dict[str, Any] = await self._actor.once(lambda actor: actor.close.remote(outcome), timeout=CLOSE_SECONDS)
                return books
        except ActorLost:
            pass
        finally:
            await self._actor.end()
        if self._record is None:
            raise ActorLost(f"{WHO} died before it had told its books")
        log.warning("%s is dead at the end; these are the books that it told last", WHO)
        return self._record.books

    def _told(self, progress: Progress) -> Progress:
        self._note(progress.record)
        finished = [prompt_id for prompt_id, *_ in progress.finished]
        traced = produced_again([*self._setup.traced, *finished], progress.record.ledger)
        self._setup = replace(self._setup, recorded=self._setup.recorded + len(finished), traced=traced)
        self._busy = self._busy_before + progress.engine_busy_seconds
        self._paused = self._paused_before + progress.paused_seconds
        return replace(progress, engine_busy_seconds=self._busy, paused_seconds=self._paused)

    def _note(self, record: Record) -> None:
        """Keep the latest books: answers may overtake each other."""
        if self._record is None or record.serial > self._record.serial:
            self._record = record

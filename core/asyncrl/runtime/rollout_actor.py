"""The rollout side in one Ray actor: task, producer, scheduler, gate, buffer, ledger, engine pool, and the eval backend beside them."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from asyncrl.authoring import RunFacts
from asyncrl.evaluation.checked import ask_backend
from asyncrl.evaluation.records import Checkpoint, EvalResult
from asyncrl.evaluation.sets import RunEvalSets, chosen_sets
from asyncrl.hookspecs import PROCESSES
from asyncrl.host import Host
from asyncrl.metrics import Delta
from asyncrl.plugins import PluginSpec, build_host
from asyncrl.rollout.client import EngineClient
from asyncrl.rollout.connection import make_session
from asyncrl.rollout.front import Front
from asyncrl.rollout.loads import EngineLoads
from asyncrl.rollout.plugin_states import plugin_states, restore_plugins
from asyncrl.rollout.pool import EnginePool
from asyncrl.rollout.record import HandedOut, Record
from asyncrl.rollout.routed_pool import RoutedPool
from asyncrl.rollout.saved_groups import Arrays, pack, unpack
from asyncrl.rollout.service import RolloutService
from asyncrl.rollout.takeover import Served
from asyncrl.rollout.weights import EngineWeights
from asyncrl.runtime.collector import collect
from asyncrl.runtime.engine_actor import EngineAddress
from asyncrl.runtime.front_process import front_process
from asyncrl.runtime.recorder import Recorded, Recorder
from asyncrl.stacks import register, watch_loop
from asyncrl.training.interfaces import TrainingBatch


@dataclass(frozen=True)
class RolloutSetup:
    """Everything the actor needs to open. `version` and `digest` are of what the engines serve at first, `restart_digest` of what a server
    starts with later; `recorded` is how many groups the trace has already, and `traced` which open prompts are among them; `log_dir`,
    `start_timeout` and `max_engine_restarts` are for a router. `kept` engines had another rollout actor, and may serve anything."""

    model: Path
    vocab_size: int
    on_unused: str
    request_timeout: float
    wait_warning: float
    publish_timeout: float
    trace_groups: int
    eval_samples: int
    log_dir: Path
    start_timeout: float
    max_engine_restarts: int
    version: int = 0
    digest: str = ""
    restart_digest: str = ""
    recorded: int = 0
    traced: frozenset[int] = frozenset()
    kept: bool = False


@dataclass(frozen=True)
class Progress:
    """What the controller polls: metric deltas, log lines and finished groups since the last time, and running totals of this actor."""

    deltas: list[Delta]
    messages: list[tuple[int, str]]
    finished: list[Recorded]
    engine_busy_seconds: float
    paused_seconds: float
    tokens_generated: int
    record: Record


class RolloutActor:
    """An asyncio Ray actor around `RolloutService`."""

    def __init__(self, specs: Sequence[PluginSpec], facts: RunFacts) -> None:
        self._facts = facts
        self._messages = collect()
        register("rollout actor", facts.run_dir)
        self._specs = specs
        self._task_open = False

    @cached_property
    def _host(self) -> Host:
        """Made in the first call, so that what is wrong with a plugin arrives as itself: a constructor's error is only a dead actor."""
        return build_host(self._specs, self._facts, slots=PROCESSES["rollout"])

    async def open_task(self, model: Path, eval_sets: Sequence[str], *, evaluates: bool) -> int:
        """Open the task, which needs no engines: what is wrong with it, or with its eval sets, is said while they start. Return the
        actor's process id."""
        watch_loop()
        self._host.one("task_open")(model=model)
        self._task_open = True
        self._eval_sets = chosen_sets(self._host, eval_sets, needed=evaluates)
        return os.getpid()

    async def close_task(self) -> None:
        """Close the task if it was opened."""
        if self._task_open and self._host.has("task_close"):
            await self._host.one("task_close")()

    async def _begin(self, setup: RolloutSetup, addresses: Sequence[EngineAddress]) -> None:
        self._session = make_session()
        self._engines = [
            EngineClient.of_spec(
                address.name,
                address.spec,
                self._session,
                vocab_size=setup.vocab_size,
                request_timeout=setup.request_timeout,
                update_timeout=setup.publish_timeout,
                version=setup.version,
            )
            for address in addresses
        ]
        self._pool, self._front = await self._connect(setup)
        self._loads = EngineLoads([*self._engines, self._front] if self._front else self._engines)
        self._weights = EngineWeights(
            self._engines,
            timeout=setup.publish_timeout,
            digest=setup.digest,
            restart_digest=setup.restart_digest,
            leave_out=self._front.leave_out if self._front else None,
        )
        self._version = setup.version
        self._recorder = Recorder(self._facts, setup.trace_groups, setup.recorded, setup.traced)
        self._eval_samples = setup.eval_samples
        self._host = self._recorder.observing(self._host)
        self._service = RolloutService(
            self._host, self._pool, self._facts, on_unused=setup.on_unused, wait_warning=setup.wait_warning
        )

    async def open(self, setup: RolloutSetup, addresses: Sequence[EngineAddress]) -> list[str]:
        """Connect to the engines, the task being open. Return those that get no requests until an update has reached them: servers that
        ran already, which may serve anything, such as what an earlier run has left there."""
        await self._begin(setup, addresses)
        if setup.kept:
            every = frozenset(address.name for address in addresses)
            return await self._take_engines_over(Served(setup.version, setup.digest, doubtful=every))
        attached = [address.name for address in addresses if not address.spec.argv]
        if setup.version:
            started = [engine for engine in self._engines if engine.name not in attached]
            await asyncio.gather(*(engine.set_version_label(setup.version) for engine in started))
        for name in attached:
            engine = self._engine(name)
            self._weights.moved(engine, engine.url, known=False)
        if attached and self._front is not None:
            await self._front.leave_out()
        return attached

    async def take_over(
        self,
        setup: RolloutSetup,
        addresses: Sequence[EngineAddress],
        served: Served,
        record: Record,
        held: HandedOut | None,
        plugins: Sequence[dict[str, Any]],
    ) -> list[str]:
        """Do what `open` and `restore` do, in the place of an actor that died (see `RolloutService.rebuild`).

        Args:
            plugins: what plugins wanted kept with the last checkpoint.

        Returns:
            the engines that get no requests until an update has reached them.
        """
        await self._begin(setup, addresses)
        misfits = await self._take_engines_over(served)
        restore_plugins(self._host, plugins)
        self._service.rebuild(record, held)
        self._service.on_published(served.version)
        self._version = served.version
        return misfits

    async def _take_engines_over(self, served: Served) -> list[str]:
        """Go on with engines that another actor had; return those that get no requests until an update has reached them."""
        misfits = await self._weights.take_over(served)
        if self._front is not None:
            await self._front.leave_out()
        return misfits

    async def _connect(self, setup: RolloutSetup) -> tuple[EnginePool, Front | None]:
        """Return the pool over the engines, and the router in front of them if the engine plugin has one."""
        server = front_process(self._host, request_timeout=setup.request_timeout, log_file=setup.log_dir / "router.txt")
        if server is None:
            return EnginePool(self._engines, lost_timeout=math.inf, warn_interval=setup.wait_warning), None
        front = Front(
            server,
            self._engines,
            self._session,
            vocab_size=setup.vocab_size,
            request_timeout=setup.request_timeout,
            max_restarts=setup.max_engine_restarts,
            warn_interval=setup.wait_warning,
        )
        await front.start(setup.start_timeout)
        return RoutedPool(front, self._engines, lost_timeout=math.inf, warn_interval=setup.wait_warning), front

    async def restore(self, saved: dict[str, Any], arrays: Arrays) -> None:
        """Go on from what `saved` returned in a former life of the run; before `start`."""
        ask = self._host.one("train_prompt")
        restore_plugins(self._host, saved["plugins"])
        self._service.restore(unpack(saved, arrays, lambda position: ask(position=position)))

    async def saved(self) -> tuple[dict[str, Any], Arrays, Progress]:
        """Return what a resumed run needs, as JSON and arrays, and the progress of the same moment."""
        saved, arrays = pack(self._service.state())
        extra = {"recorded": self._recorder.recorded, "plugins": plugin_states(self._host)}
        return saved | extra, arrays, await self.progress()

    async def start(self) -> Record:
        """Begin to generate."""
        self._host.observe("on_run_start", run=self._facts)
        await self._service.start()
        self._loads.start()
        return self._service.record()

    async def take_batch(self, version: int, step: int) -> tuple[TrainingBatch, tuple[HandedOut, Record]]:
        """Return the next batch, and what is booked of it. Called for two objects, the first is the caller's and outlives the actor."""
        batch, _ = await self._service.take_batch(version, step)
        return batch, (self._service.handed_out(step), self._service.record())

    async def trained(self, step: int) -> Record:
        self._service.trained(step)
        return self._service.record()

    async def evaluate(self, checkpoint: Checkpoint) -> EvalResult:
        """Run an eval backend that uses the rollout engines on one checkpoint, submission paused meanwhile."""
        sets = RunEvalSets(
            self._eval_sets,
            self._pool,
            produce=self._host.one("produce"),
            make_sampler=self._service.eval_sampler,
            max_concurrent_samples=self._facts.max_concurrent_samples,
            shown_samples=self._eval_samples,
        )
        await self._service.pause_submission()
        try:
            return await ask_backend(self._host, checkpoint, sets)
        finally:
            self._service.resume_submission()

    async def weights(self, call: str, *arguments: Any) -> Any:
        """Call a method of `EngineWeights`, the engines' side of a publication. An update returns the engines that it did not reach."""
        if call not in ("load_from_disk", "receive"):
            return await getattr(self._weights, call)(*arguments)
        with self._recorder.pause():
            await getattr(self._weights, call)(*arguments)
        version: int = arguments[0]
        self._service.on_published(version)
        if version != self._version:  # else an engine that came back was brought to it
            self._version = version
            self._host.observe("on_weights_published", version=version)
        return self._idle()

    async def engine_lost(self, name: str, why: str) -> list[str]:
        """Send no requests to an engine until an update reaches a new server of it; return the engines that get none now."""
        engine = self._engine(name)
        self._pool.bury(engine, why)
        engine.lost()
        if self._front is not None:
            await self._front.leave_out()
        return self._idle()

    async def engine_back(self, address: EngineAddress) -> None:
        """An engine has a new server, which serves the weights of its start; one that is attached to may have its former one."""
        self._weights.moved(self._engine(address.name), address.spec.url, known=bool(address.spec.argv))

    def _idle(self) -> list[str]:
        return [engine.name for engine in self._engines if not engine.alive]

    def _engine(self, name: str) -> EngineClient:
        return next(engine for engine in self._engines if engine.name == name)

    async def progress(self) -> Progress:
        """Take what happened since the last call. Cheap."""
        front = [self._front] if self._front else []
        parts: list[Any] = [self._pool, self._loads, *front]
        senders: list[Front | EngineClient] = [*front] or [*self._engines]
        return Progress(
            deltas=[*self._service.drain_metrics(), *(part.metrics.drain() for part in parts)],
            messages=self._messages.take(),
            finished=self._recorder.take(),
            engine_busy_seconds=sum(sender.busy_seconds for sender in senders) / len(senders),
            paused_seconds=self._recorder.paused_seconds,
            tokens_generated=self._service.tokens_generated,
            record=self._service.record(),
        )

    async def close(self, outcome: str) -> dict[str, Any]:
        """Stop the producer, close task and connections; return the final books."""
        await self._service.stop()
        books: dict[str, Any] = self._service.books()
        self._host.observe("on_run_end", outcome=outcome)
        await self.close_task()
        await self._weights.close()
        await self._loads.close()
        await self._pool.close()
        if self._front is not None:
            await self._front.close()
        for engine in self._engines:
            await engine.close()
        await self._session.close()
        return books

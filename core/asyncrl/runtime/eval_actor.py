"""The evaluator: an eval backend with a task and a producer of its own in one Ray actor, so that rollout does not depend on it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from asyncrl.authoring import RunFacts
from asyncrl.evaluation.checked import ask_backend
from asyncrl.evaluation.pin import OwnClient, OwnEngines, OwnEvalSets
from asyncrl.evaluation.records import Checkpoint, EvalResult, EvalSet
from asyncrl.evaluation.sets import RunEvalSets, chosen_sets
from asyncrl.evaluation.setup import blocks
from asyncrl.hookspecs import PROCESSES
from asyncrl.host import Host
from asyncrl.metrics import Delta
from asyncrl.plugins import PluginSpec, build_host
from asyncrl.rollout.connection import make_session
from asyncrl.rollout.engine import Generates
from asyncrl.rollout.group_sampler import GroupSampler
from asyncrl.rollout.metrics import RolloutMetrics
from asyncrl.rollout.pool import EnginePool
from asyncrl.runtime.collector import collect
from asyncrl.runtime.engine_actor import EngineAddress
from asyncrl.stacks import register, watch_loop

LOST_SECONDS = 10.0
"""How long a request waits for one of the backend's engines to come back."""
CONTROL_SECONDS = 60.0


@dataclass(frozen=True)
class EvalSetup:
    """Everything the evaluator needs to open.

    Attributes:
        sets: names of the task's eval sets to evaluate; empty is all.
        load_timeout: seconds in which an engine must have loaded a checkpoint.
        shown_samples: completions of each set that are kept as text.
    """

    model: Path
    vocab_size: int
    sets: tuple[str, ...]
    request_timeout: float
    load_timeout: float
    wait_warning: float
    shown_samples: int


class EvalActor:
    """An asyncio Ray actor. Its answers are its own: one that dies costs the point under way."""

    def __init__(self, specs: Sequence[PluginSpec], facts: RunFacts) -> None:
        self._facts = facts
        self._messages = collect()
        register("evaluator", facts.run_dir)
        self._specs = specs

    @cached_property
    def _host(self) -> Host:
        """Made in the first call, so that what is wrong with a plugin arrives as itself: a constructor's error is only a dead actor."""
        return build_host(self._specs, self._facts, slots=PROCESSES["evaluator"])

    async def open(self, setup: EvalSetup) -> None:
        """Open the task."""
        watch_loop()
        self._setup = setup
        self._session = make_session()
        self._host.one("task_open")(model=setup.model)
        self._sets = chosen_sets(self._host, setup.sets, needed=True)

    async def evaluate(self, checkpoint: Checkpoint, addresses: Sequence[EngineAddress] | None) -> EvalResult:
        """Run the backend on one checkpoint.

        Args:
            addresses: of the backend's own engines, all healthy; None when it has none.
        """
        clients = [self._client(address) for address in addresses or ()]
        pool = EnginePool(
            clients, lost_timeout=LOST_SECONDS, warn_interval=self._setup.wait_warning, health_interval=2.0, health_failures=2
        )
        must_pin = bool(self._host.plugin("eval").needs_snapshot)
        engines = None if addresses is None else OwnEngines(clients, pool, must_pin=must_pin)
        runs = RunEvalSets(
            self._sets,
            pool,
            produce=self._host.one("produce"),
            make_sampler=self._sampler,
            max_concurrent_samples=self._facts.max_concurrent_samples,
            shown_samples=self._setup.shown_samples,
        )
        try:
            sets: OwnEvalSets | RunEvalSets = OwnEvalSets(runs, engines)
            if blocks(
                self._host.plugin("eval")
            ):  # outside a run, where the engines were started for it with the checkpoint's weights
                await self._label(clients, checkpoint.version)
                sets = runs
            return await ask_backend(self._host, checkpoint, sets)
        finally:
            await pool.close()
            for client in clients:
                await client.close()

    async def lives(self) -> bool:
        """Answer: whoever can is alive, and its event loop is not stuck."""
        return True

    async def progress(self) -> tuple[list[Delta], list[tuple[int, str]]]:
        """Take metrics and log lines since the last call."""
        return self._host.drain(), self._messages.take()

    async def close(self) -> None:
        """Close the task."""
        if self._host.has("task_close"):
            await self._host.one("task_close")()
        await self._session.close()

    def _client(self, address: EngineAddress) -> OwnClient:
        setup = self._setup
        return OwnClient.of_spec(
            address.name,
            address.spec,
            self._session,
            vocab_size=setup.vocab_size,
            request_timeout=setup.request_timeout,
            update_timeout=setup.load_timeout,
            control_timeout=min(CONTROL_SECONDS, setup.load_timeout),
        )

    async def _label(self, clients: Sequence[OwnClient], version: int) -> None:
        await asyncio.gather(*(client.set_version_label(version) for client in clients))
        for client in clients:
            client.version = version

    def _sampler(self, engines: Generates, one: EvalSet) -> GroupSampler:
        return GroupSampler(
            engines,
            self._host.one("score_sample"),
            group_size=one.samples_per_prompt,
            params=one.params,
            max_retries=self._facts.max_retries,
            metrics=RolloutMetrics("rollout"),
            seed=self._facts.seed,
        )

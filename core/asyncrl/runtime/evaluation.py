"""The controller's side of a backend that does not use the rollout engines: its evaluator, made anew if it died, and its engines."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ray

from asyncrl.authoring import RunFacts
from asyncrl.errors import AsyncrlError, EvalSkip
from asyncrl.evaluation.records import Checkpoint, EvalResult
from asyncrl.metrics import Delta
from asyncrl.plugins import PluginSpec
from asyncrl.run_options import RunOptions
from asyncrl.runtime.cluster import Cluster, ask
from asyncrl.runtime.eval_actor import EvalActor, EvalSetup
from asyncrl.runtime.eval_engines import EvalEngines
from asyncrl.runtime.eval_plan import EvalEnginePlan

log = logging.getLogger("asyncrl")
WHO = "the evaluator"
POLL_SECONDS = 1.0
LAST_POLL_SECONDS = 5.0
CLOSE_SECONDS = 10.0


class Evaluation:
    """Evaluates one checkpoint after the other.

    Args:
        specs: the run's plugins.
        place: the `.options(…)` that say where the evaluator is.
        engines: the backend's own; None when it has none.
        timeout: seconds in which the evaluator must have opened.
        add_metrics: takes the metrics that come from the evaluator.
    """

    def __init__(
        self,
        specs: Sequence[PluginSpec],
        facts: RunFacts,
        setup: EvalSetup,
        engines: EvalEngines | None,
        *,
        place: dict[str, Any],
        timeout: float,
        add_metrics: Callable[[Delta], None],
    ) -> None:
        self._specs = list(specs)
        self._facts = facts
        self._setup = setup
        self._engines = engines
        self._place = place
        self._timeout = timeout
        self._actor: Any = None
        self._opening: asyncio.Task[None] | None = None
        self._polling: asyncio.Task[None] | None = None
        self._add_metrics = add_metrics

    def start(self) -> None:
        """Begin to start the evaluator and its engines. Nobody waits for them but the first point."""
        self._begin()
        self._polling = asyncio.ensure_future(self._poll_forever())
        if self._engines is not None:
            self._engines.start()

    async def opened(self) -> None:
        """Wait for the evaluator; make one if there is none, or if the one that was there has died since the last point.

        Raises:
            AsyncrlError: the task, or its eval sets, are at fault; or the evaluator did not start.
        """
        if self._actor is not None and self._opening is not None and self._opening.done():
            try:
                await ask(self._actor.lives.remote(), WHO, LAST_POLL_SECONDS)
            except AsyncrlError:
                await self._drop()
        if self._actor is None:
            self._begin()
        assert self._opening is not None
        await asyncio.shield(self._opening)

    async def evaluate(self, checkpoint: Checkpoint) -> EvalResult:
        """Run the backend on one checkpoint. Cancelling it ends the evaluator with all it does; the next point gets a new one.

        Raises:
            EvalSkip: the point can't be had.
            AsyncrlError: evaluator or backend failed.
        """
        addresses = None if self._engines is None else await self._engines.ready()
        try:
            await self.opened()
            call = self._actor.evaluate.remote(checkpoint, addresses)
            result: EvalResult = await ask(
                call, (what := f"the evaluation of version {checkpoint.version}"), told=what
            )  # nobody waits
            return result
        except EvalSkip as skip:
            raise await self._with_tails(skip) from None
        except BaseException:
            await self._drop()
            raise
        finally:
            await self._last_poll()

    async def close(self) -> None:
        """End the evaluator and every server that was started for it."""
        if self._polling is not None:
            self._polling.cancel()
        actor = self._actor
        try:
            if actor is not None and self._opening is not None and self._opening.done():
                await self._last_poll()
                with contextlib.suppress(AsyncrlError):
                    await ask(actor.close.remote(), WHO, CLOSE_SECONDS)
        finally:
            await self._drop()
            if self._engines is not None:
                await self._engines.close()

    def _begin(self) -> None:
        remote = ray.remote(EvalActor).options(**self._place, max_concurrency=1000)
        self._actor = remote.remote(self._specs, self._facts)
        self._opening = asyncio.ensure_future(ask(self._actor.open.remote(self._setup), f"{WHO} to open", self._timeout))
        self._opening.add_done_callback(lambda task: task.cancelled() or task.exception())  # told at the next point

    async def _drop(self) -> None:
        actor, self._actor = self._actor, None
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        if actor is not None:
            await asyncio.to_thread(ray.kill, actor)

    async def _with_tails(self, skip: EvalSkip) -> EvalSkip:
        """Return the skip with what the servers that ended said last."""
        tails = await self._engines.log_tails() if self._engines is not None else ""
        if not tails:
            return skip
        return EvalSkip(f"{skip.message}\n{tails}" if ":" in skip.message else f"{skip.message}: {tails}")

    async def _poll_forever(self) -> None:
        """A task of its own, because an evaluator may take its time to answer."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            with contextlib.suppress(AsyncrlError):
                await self._poll()

    async def _poll(self) -> None:
        if self._actor is None:
            return
        deltas, messages = await ask(self._actor.progress.remote(), WHO, told=WHO)
        for delta in deltas:
            self._add_metrics(delta)
        for level, line in messages:
            log.log(level, "%s", line)

    async def _last_poll(self) -> None:
        with contextlib.suppress(AsyncrlError, TimeoutError):
            async with asyncio.timeout(LAST_POLL_SECONDS):
                await self._poll()


def make_evaluation(
    core: RunOptions,
    specs: Sequence[PluginSpec],
    facts: RunFacts,
    plan: EvalEnginePlan | None,
    cluster: Cluster,
    *,
    vocab_size: int,
    api_key: str,
    log_dir: Path,
    add_metrics: Callable[[Delta], None] = lambda delta: None,
) -> Evaluation:
    """Return the evaluation of a run, not started yet.

    Args:
        plan: the backend's own engines; None when it has none. Their bundles are the cluster's last.
        facts: with the model that was found.
        api_key: what the engines' servers require; '' for nothing.
        log_dir: where they log.
    """
    model = Path(facts.model)
    engines = None
    if plan is not None:
        engines = EvalEngines(
            plan, cluster, model=model, bind=core.bind, api_key=api_key, log_dir=log_dir, timeout=core.start_timeout
        )
    setup = EvalSetup(
        model=model,
        vocab_size=vocab_size,
        sets=core.eval_sets,
        request_timeout=core.request_timeout,
        load_timeout=core.publish_timeout,
        wait_warning=core.wait_warning,
        shown_samples=core.eval_samples,
    )
    return Evaluation(specs, facts, setup, engines, place=cluster.here(), timeout=core.start_timeout, add_metrics=add_metrics)

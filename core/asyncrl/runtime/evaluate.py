"""One evaluation outside a run: start what the backend needs, evaluate, leave nothing behind but the record."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import replace
from pathlib import Path

from asyncrl.authoring import RunFacts
from asyncrl.errors import OptionError
from asyncrl.evaluation.dispatcher import EvalDispatcher
from asyncrl.evaluation.records import Checkpoint, EvalRecord
from asyncrl.evaluation.setup import blocks
from asyncrl.evaluation.snapshots import Snapshots
from asyncrl.evaluation.subject import Subject
from asyncrl.host import Host
from asyncrl.network import key_for
from asyncrl.options import RunConfig
from asyncrl.plugins import build_host
from asyncrl.rollout.engine import EngineSet
from asyncrl.runtime import preflight
from asyncrl.runtime.cluster import Cluster
from asyncrl.runtime.directory import RunDirectory
from asyncrl.runtime.eval_plan import EvalEnginePlan, plan_eval_engines
from asyncrl.runtime.evaluation import make_evaluation
from asyncrl.runtime.interrupt import Interrupts
from asyncrl.runtime.janitor import Janitor
from asyncrl.training.loop import Stop

log = logging.getLogger("asyncrl")


class Given(Snapshots):
    """The one checkpoint that somebody named. It is never removed."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def initial(self, version: int) -> Checkpoint:
        return self._checkpoint


class CheckpointEvaluation:
    """Evaluates a checkpoint with the plugins of a configuration.

    Attributes:
        directory: where the record, the options and the log files go.
        record: how it ended; None until then.
    """

    def __init__(self, config: RunConfig, subject: Subject) -> None:
        core = config.core
        if "model" in config.origins and not config.origins["model"].startswith(f"{config.file}:"):
            raise OptionError(
                "the checkpoint is the model that is evaluated", origin=config.origins["model"], remedy="leave it out"
            )
        self._config = config
        self._checkpoint = subject.checkpoint
        if subject.dtype != core.dtype:  # the digest is of other numbers
            self._checkpoint = replace(self._checkpoint, digest="")
        name = core.name or f"eval-{subject.name}-{time.strftime('%Y%m%d-%H%M%S')}"
        self.directory = RunDirectory(Path(core.runs_dir), name)
        self.record: EvalRecord | None = None
        self._model = subject.model
        self._facts: RunFacts = replace(
            config.facts(),
            device=preflight.resolve_device(core.device),
            steps=0,
            publish_method="disk",
            model=str(self._model),
            run_dir=str(self.directory.path),
        )
        self._host: Host = build_host(config.specs, self._facts)

    def run(self) -> bool:
        """Evaluate; returns whether it was not interrupted.

        Raises:
            UserError: something does not fit; nothing is left of it.
            AsyncrlError: a plugin or the cluster failed before the point could be evaluated.
        """
        preflight.require_device(self._config.core, self._facts)
        preflight.require_bind(self._config.core)
        self._host.each("check_run", run=self._facts)
        self._vocab_size = preflight.read_vocab_size(self._model)
        self._plan = self._engines()
        self.directory.create(self._config.to_toml())
        log_file = self.directory.open_log()
        try:
            return asyncio.run(self._main())
        finally:
            logging.getLogger("asyncrl").removeHandler(log_file)
            log_file.close()
            if self.record is None:
                self.directory.remove()
            self.directory.lock.release()

    def _engines(self) -> EvalEnginePlan | None:
        """The backend's own engines; the rollout's, for a backend that evaluates on those; None for one that needs none."""
        if not blocks(self._host.plugin("eval")):
            return plan_eval_engines(self._config, self._host, self._facts)
        spec = next(spec for spec in self._config.specs if spec.slot == "engine")
        count = self._config.core.num_engines
        needs = (self._host.one("engine_needs")(),) * count
        return EvalEnginePlan(EngineSet(spec.name, {}, count), spec, self._facts, needs, comparable=True)

    async def _main(self) -> bool:
        task = asyncio.current_task()
        assert task is not None
        with Interrupts(task, Stop()) as interrupts:
            try:
                async with contextlib.AsyncExitStack() as stack:
                    await self._evaluate(stack, interrupts)
            except asyncio.CancelledError:
                if not interrupts.received:
                    raise
                task.uncancel()
                return False
        return True

    async def _evaluate(self, stack: contextlib.AsyncExitStack, interrupts: Interrupts) -> None:
        core = self._config.core
        needs = list(self._plan.needs) if self._plan else []
        cluster = Cluster(core.ray_address, needs, bind=core.bind, origin="num_engines, eval")
        janitor = Janitor([cluster.temp_dir], [self.directory.lock.descriptor])
        stack.callback(janitor.close)
        stack.callback(cluster.stop)
        await cluster.start(core.start_timeout)
        interrupts.install()
        if needs:
            await cluster.reserve(core.start_timeout)
        evaluation = make_evaluation(
            core,
            self._config.specs,
            self._facts,
            self._plan,
            cluster,
            vocab_size=self._vocab_size,
            api_key=key_for(core.bind),
            log_dir=self.directory.path / "logs",
        )
        stack.push_async_callback(evaluation.close)
        evaluation.start()
        await evaluation.opened()
        dispatcher = EvalDispatcher(
            interval=1,
            before=True,
            evaluate=evaluation.evaluate,
            record=self._recorded,
            snapshots=Given(self._checkpoint),
            blocking=True,
            timeout=core.eval_timeout,
            wait_warning=core.wait_warning,
        )
        stack.push_async_callback(dispatcher.close)
        await dispatcher.before_training(self._checkpoint.version)

    def _recorded(self, record: EvalRecord) -> None:
        self.record = record
        self.directory.add_eval(record)

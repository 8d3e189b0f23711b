"""A run put together on its base: every process is started and connected to the others, then the training loop runs; the stack takes all of
it down."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from asyncrl.errors import AsyncrlError, BooksError, CheckpointError, TrainerLost
from asyncrl.evaluation.dispatcher import EvalDispatcher
from asyncrl.evaluation.records import Checkpoint, EvalResult
from asyncrl.evaluation.setup import blocks, make_dispatcher
from asyncrl.loggers import RunHeader
from asyncrl.metrics import Registry
from asyncrl.network import require_reachable
from asyncrl.rollout.saved_groups import Arrays
from asyncrl.runtime.base import Base, Job
from asyncrl.runtime.cluster import Cluster
from asyncrl.runtime.engine_actor import EngineAddress
from asyncrl.runtime.evaluation import make_evaluation
from asyncrl.runtime.interrupt import Interrupts
from asyncrl.runtime.recorder import produced_again
from asyncrl.runtime.reporter import Reporter, declared_metrics
from asyncrl.runtime.resume import begin_again, saved_identity, saved_step
from asyncrl.runtime.rollout_actor import RolloutSetup
from asyncrl.runtime.rollout_handle import RolloutHandle, rollout_maker
from asyncrl.runtime.supervisor import Supervisor
from asyncrl.runtime.trainer_group import TrainerGroup, rank_maker
from asyncrl.runtime.watchdog import Watchdog, report_of
from asyncrl.training.checkpoints import RunCheckpoints
from asyncrl.training.interfaces import TrainerFacts
from asyncrl.training.loop import TrainingLoop
from asyncrl.training.publication import Publisher, PublishPlan
from asyncrl.training.stored import remove_partial

log = logging.getLogger("asyncrl")


class Assembly:
    """Starts what a job needs, in order, and trains.

    Attributes:
        trainer: once there is one.
    """

    def __init__(self, job: Job, base: Base, interrupts: Interrupts) -> None:
        self.trainer: TrainerGroup | None = None
        self._job = job
        self._base = base
        self._interrupts = interrupts

    async def train(self, stack: contextlib.AsyncExitStack) -> None:
        """Start everything and train to the end, or until a stop is asked for. What was started ends with the stack."""
        job, core, facts, resumed = self._job, self._job.core, self._job.facts, self._job.resumed
        self._announce()
        if not job.begun:
            self._begin()
        cluster = self._base.cluster
        watchdog = stack.enter_context(Watchdog(job.directory.path, core.watchdog_timeout))
        stack.callback(remove_partial, job.directory.checkpoints)  # when no rank is left that could write to one
        watchdog.elsewhere = lambda: cluster.ask_other_nodes(report_of, str(job.directory.path))
        trainer, num_parameters, rollout, publisher = await self._start_processes(stack, cluster)
        if job.begun:
            self._take_back()
        supervisor = Supervisor(
            self._base.engines.servers,
            rollout,
            publisher,
            max_restarts=core.max_engine_restarts,
            hang_timeout=core.engine_hang_timeout,
        )
        stack.push_async_callback(supervisor.close)
        supervisor.leave_out(rollout.left_out)
        rollout.on_anew = supervisor.rollout_anew
        registry = Registry(declared_metrics(job.config.classes))
        trainer_plugin = job.host.plugin("trainer")
        reporter = Reporter(
            job.host,
            registry,
            job.directory,
            rollout,
            publisher,
            job.totals,
            f"{trainer_plugin.slot}/{trainer_plugin.name}",
            job.started,
            others=[supervisor.metrics, rollout.metrics],
        )
        log.info("model %s: %s parameters", job.model.name, f"{num_parameters:,}")

        evaluate = self._evaluation(rollout, reporter)
        if core.eval_interval and not blocks(job.host.plugin("eval")):
            evaluation = make_evaluation(
                core,
                job.config.specs,
                facts,
                job.eval_plan,
                cluster,
                vocab_size=job.vocab_size,
                api_key=self._base.api_key,
                log_dir=job.directory.path / "logs",
                add_metrics=registry.add,
            )
            stack.push_async_callback(evaluation.close)
            evaluation.start()
            evaluate = evaluation.evaluate
        evals = make_dispatcher(
            core,
            job.host.plugin("eval"),
            trainer,
            model=job.model,
            staging=self._base.staging,
            checkpoints=job.directory.checkpoints,
            written=lambda step: checkpoints.written(step),
            released=lambda: checkpoints.retire(),
            evaluate=evaluate,
            record=reporter.evaluated,
        )
        stack.push_async_exit(_close_evals(evals))
        checkpoints = RunCheckpoints(
            job.directory.checkpoints,
            interval=core.save_interval,
            keep=core.keep_checkpoints,
            trainer=trainer,
            run_state=lambda: self._run_state(loop, rollout, publisher, reporter, evals),
            on_saved=lambda step, path: job.host.observe("on_checkpoint", step=step, directory=path),
            on_failed=lambda: reporter.disk_failed("checkpoint"),
            in_use=evals.steps_in_use,
            wait_warning=core.wait_warning,
        )
        stack.push_async_exit(lambda kind, error, trace: checkpoints.close(error))
        loop = TrainingLoop(
            steps=core.steps,
            publish_interval=core.publish_interval,
            rollout=rollout,
            trainer=trainer,
            publisher=supervisor,
            engines=supervisor,
            evals=evals,
            checkpoints=checkpoints,
            on_step=reporter.step,
            stop=job.stop,
            done=resumed.step if resumed else 0,
        )
        if resumed:
            evals.restore(resumed.stored.run["evals"], job.directory.lines("evals.jsonl"))
            await reporter.go_on(resumed.report, resumed.trained, job.directory.lines("evals.jsonl"), reported=resumed.reported)
        elif records := job.directory.lines("evals.jsonl"):  # of the initial weights
            evals.restore({}, records)
            reporter.know(records)
        job.host.observe("on_run_start", run=facts)
        await rollout.start()
        supervisor.start()
        watchdog.begin(lambda: (publisher.version, reporter.moved))
        poll = asyncio.ensure_future(reporter.poll_forever())
        stack.callback(poll.cancel)
        self._interrupts.loop_running = True
        try:
            await loop.run()
        finally:
            await reporter.last_poll()

    def _announce(self) -> None:
        """Tell people of the run."""
        job, resumed = self._job, self._job.resumed
        if resumed:
            log.info("the run goes on from %s", resumed.stored.directory)
        elif job.begun:
            log.info("the run begins again: it has no checkpoint to go on from")
        for note in job.config.notes:
            log.info("%s", note)
        engines = f"{'keeping' if job.again else 'starting'} {job.core.num_engines} engine(s)"
        log.info("run directory %s; device %s; %s", job.directory.path, job.facts.device, engines)

    def _take_back(self) -> None:
        """Now that everything has started, take back what the run did after the point from which it goes on; loggers do the same."""
        job, resumed = self._job, self._job.resumed
        if resumed:
            resumed.clear()
        else:
            begin_again(job.directory)
        self._begin(resumed.kept_step if resumed else 0)

    def _begin(self, kept_step: int = -1) -> None:
        """Tell loggers of the run, and the last step of which they keep what they have."""
        job = self._job
        header = RunHeader(
            name=job.directory.name,
            directory=job.directory.path,
            steps=job.core.steps,
            options=job.config.to_dict(),
            metrics=tuple(declared_metrics(job.config.classes)),
            resumed_step=kept_step,
        )
        job.host.observe("log_start", header=header)

    async def _start_processes(
        self, stack: contextlib.AsyncExitStack, cluster: Cluster
    ) -> tuple[TrainerGroup, int, RolloutHandle, Publisher]:
        """Start engines, trainer and rollout actor with the weights of the beginning, or of the checkpoint; return the trainer with its
        number of parameters, the rollout actor, and the publisher between them."""
        job, core, facts, resumed = self._job, self._job.core, self._job.facts, self._job.resumed
        specs = job.config.specs
        self.trainer = trainer = TrainerGroup(
            rank_maker(cluster, core.num_engines, specs, facts), core.trainer_ranks, bind=core.bind, timeout=core.trainer_timeout
        )
        stack.push_async_callback(_quietly(trainer.close, "closing the trainer"))
        rollout = RolloutHandle(rollout_maker(cluster, specs, facts), job.restarts, last_words=cluster.last_words)
        try:
            _, addresses, (opened, digest) = await asyncio.gather(
                rollout.open_task(job.model, core.eval_sets, core.start_timeout, evaluates=core.eval_interval > 0),
                self._start_engines(),
                self._open_trainer(trainer),
            )
        except BaseException:
            await _quietly(rollout.close_task, "closing the task")()
            raise
        stack.push_async_exit(self._close_rollout(rollout))
        if core.publish_method == "broadcast":
            require_reachable(core.bind, [address.spec.url for address in addresses])
        trace = resumed.trace() if resumed else []
        setup = RolloutSetup(
            model=job.model,
            vocab_size=job.vocab_size,
            on_unused=core.on_unused,
            request_timeout=core.request_timeout,
            wait_warning=core.wait_warning,
            publish_timeout=core.publish_timeout,
            trace_groups=core.trace_groups,
            eval_samples=core.eval_samples,
            log_dir=job.directory.path / "logs",
            start_timeout=core.start_timeout,
            max_engine_restarts=core.max_engine_restarts,
            version=resumed.version if resumed else 0,
            digest=digest,
            restart_digest=opened.digest,
            recorded=len(trace),
            traced=produced_again([line["prompt_id"] for line in trace], resumed.rollout()["ledger"]) if resumed else frozenset(),
            kept=job.again,
        )
        await rollout.open(setup, addresses, core.start_timeout)
        if resumed:
            await rollout.restore(resumed.rollout(), resumed.stored.arrays())

        plan = PublishPlan(
            strategy=core.publish_method,
            mode=core.publish_mode,
            timeout=core.publish_timeout,
            run_id=self._base.run_id,
            directory=Path(core.publish_dir),
            address=await trainer.address(),
            backend="nccl" if facts.device == "cuda" else "gloo",
        )
        publisher = Publisher(plan, trainer, rollout, digest=digest, version=setup.version, pick_port=trainer.free_port)
        stack.push_async_callback(publisher.close)
        return trainer, opened.num_parameters, rollout, publisher

    def _evaluation(self, rollout: RolloutHandle, reporter: Reporter) -> Callable[[Checkpoint], Awaitable[EvalResult]]:
        async def evaluate(checkpoint: Checkpoint) -> EvalResult:
            await reporter.poll()
            before = self._job.totals.engines
            try:
                return await rollout.evaluate(checkpoint)
            finally:
                await reporter.poll()
                self._job.totals.engines_in_eval += self._job.totals.engines - before

        return evaluate

    async def _start_engines(self) -> list[EngineAddress]:
        """Start the engines with the weights of the beginning, or of the checkpoint. Those that are there are kept, whatever they serve."""
        job, core, engines = self._job, self._job.core, self._base.engines
        if job.again:
            return engines.addresses()
        return await engines.start(
            job.resumed.stored.model if job.resumed else job.model,
            restart_model=job.model,
            bind=core.bind,
            api_key=self._base.api_key,
            base_port=core.base_port,
            log_dir=job.directory.path / "logs",
            timeout=core.start_timeout,
        )

    async def _open_trainer(self, trainer: TrainerGroup) -> tuple[TrainerFacts, str]:
        """Return what the trainer says of the model, and the digest of the weights with which training begins or goes on."""
        opened = await trainer.open(self._job.model, self._job.facts, timeout=self._job.core.start_timeout)
        if not self._job.resumed:
            return opened, opened.digest
        stored = self._job.resumed.stored
        digest = await trainer.load(stored.trainer)
        if digest != stored.run["digest"]:
            raise CheckpointError(f"the trainer's weights are not those that {stored.directory} was written with")
        return opened, digest

    async def _run_state(
        self, loop: TrainingLoop, rollout: RolloutHandle, publisher: Publisher, reporter: Reporter, evals: EvalDispatcher
    ) -> tuple[dict[str, Any], Arrays]:
        """Return what a checkpoint holds beside trainer and model."""
        assert loop.trained is not None
        saved, arrays, progress = await rollout.saved()
        reporter.fold(progress)
        state = {
            **saved_identity(self._job.config),
            "version": publisher.version,
            "trained": saved_step(loop.trained),
            "rollout": saved,
            "report": reporter.state(),
            "evals": evals.state(),
        }
        return state, arrays

    def _close_rollout(self, rollout: RolloutHandle) -> Callable[..., Awaitable[None]]:
        async def close(kind: Any, error: BaseException | None, trace: Any) -> None:
            outcome = "completed" if error is None else "failed"
            try:
                self._job.totals.books = await rollout.close(outcome)
            except AsyncrlError as problem:
                if error is None:
                    raise
                log.warning("closing the rollout actor: %s", problem)
            if error is None and (left := _imbalance(self._job.totals.books)):
                raise BooksError(
                    f"the books do not balance: {left} of {self._job.totals.books['issued']} groups are unaccounted for"
                )

        return close


def _close_evals(evals: EvalDispatcher) -> Callable[..., Awaitable[None]]:
    async def close(kind: Any, error: BaseException | None, trace: Any) -> None:
        await evals.close(comes_again=isinstance(error, TrainerLost))

    return close


def _imbalance(books: dict[str, Any]) -> int:
    return int(books["issued"] - books["trained"] - books["unfinished"] - sum(books["dropped"].values()))


def _quietly(close: Callable[[], Awaitable[None]], what: str) -> Callable[[], Awaitable[None]]:
    async def attempt() -> None:
        try:
            await close()
        except AsyncrlError as error:
            log.warning("%s: %s", what, error)

    return attempt

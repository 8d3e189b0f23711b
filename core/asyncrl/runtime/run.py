"""One run from configuration to exit code: check everything, start everything, train, leave nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from asyncrl.authoring import RunFacts
from asyncrl.errors import AsyncrlError, BooksError, CheckpointError, EngineError, PublicationError, UserError
from asyncrl.evaluation.dispatcher import EvalDispatcher
from asyncrl.evaluation.records import Checkpoint, EvalResult
from asyncrl.evaluation.setup import blocks, check_options, check_staging, make_dispatcher
from asyncrl.evaluation.snapshots import staging_directory
from asyncrl.fit import check_fit
from asyncrl.host import Host
from asyncrl.loggers import RunHeader
from asyncrl.metrics import Registry
from asyncrl.options import RunConfig
from asyncrl.plugins import build_host
from asyncrl.rollout.engine import EngineNeeds
from asyncrl.rollout.saved_groups import Arrays
from asyncrl.runtime import preflight
from asyncrl.runtime.cluster import Cluster
from asyncrl.runtime.directory import RunDirectory, run_name
from asyncrl.runtime.engine_group import EngineGroup
from asyncrl.runtime.eval_plan import plan_eval_engines
from asyncrl.runtime.evaluation import make_evaluation
from asyncrl.runtime.interrupt import Interrupts
from asyncrl.runtime.janitor import Janitor
from asyncrl.runtime.reporter import LoggerBridge, Reporter, declared_metrics, describe
from asyncrl.runtime.resume import Resumption, saved_identity, saved_step
from asyncrl.runtime.rollout_actor import RolloutSetup
from asyncrl.runtime.rollout_handle import RolloutHandle
from asyncrl.runtime.summary import Totals
from asyncrl.runtime.trainer_group import TrainerGroup
from asyncrl.training.checkpoints import RunCheckpoints
from asyncrl.training.loop import Stop, TrainingLoop
from asyncrl.training.publication import Publisher, PublishPlan

log = logging.getLogger("asyncrl")
INTERRUPTED = 130


def run_training(config: RunConfig, resumed: Resumption | None = None) -> int:
    """Run `config` to its end, from the beginning or from a checkpoint, and return the exit code: 0 completed, 130 interrupted.

    Raises:
        UserError: something does not fit; nothing was started.
        AsyncrlError: the run failed; everything was shut down.
    """
    run = _Run(config, resumed)
    run.check()
    return run.execute()


class _Run:
    def __init__(self, config: RunConfig, resumed: Resumption | None) -> None:
        self._config = config
        self._resumed = resumed
        self._core = config.core
        self._facts: RunFacts = replace(
            config.facts(), device=preflight.resolve_device(config.core.device), on_unused=config.core.on_unused
        )
        self._directory = (
            resumed.directory if resumed else RunDirectory(Path(self._core.runs_dir), run_name(self._core.name, config.file))
        )
        self._facts = replace(self._facts, run_dir=str(self._directory.path))
        self._host: Host = build_host(config.specs, self._facts)
        self._model = Path()
        self._vocab_size = 0
        self._run_id = secrets.token_hex(6)
        self._totals = Totals(**resumed.report["totals"]) if resumed else Totals()
        self._stop = Stop()
        self._engines: EngineGroup | None = None
        self._interrupts: Interrupts | None = None

    # Before anything starts ---------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse what cannot work, make the task's model if need be, make the run directory."""
        preflight.require_device(self._core, self._facts)
        check_fit(self._host)
        check_options(self._core, self._host.plugin("eval"))
        self._host.each("check_run", run=self._facts)
        preflight.require_ports(self._core)
        self._bridge = LoggerBridge(self._host)
        logging.getLogger("asyncrl").addHandler(self._bridge)
        logging.getLogger("asyncrl").setLevel(logging.INFO)
        self._model = preflight.find_model(self._host, self._facts)
        self._vocab_size = preflight.read_vocab_size(self._model)
        self._facts = replace(self._facts, model=str(self._model))
        preflight.require_space(self._core, self._model)
        check_staging(self._core, self._host.plugin("eval"), preflight.model_bytes(self._model))
        self._eval_plan = plan_eval_engines(self._config, self._host, self._facts)
        self._directory.create(self._config.to_toml())

    # The run --------------------------------------------------------------------------------------------------------------

    def execute(self) -> int:
        log_file = self._directory.open_log()
        started = time.monotonic() - (self._resumed.seconds if self._resumed else 0.0)
        outcome, problem, refused = "failed", "", False
        try:
            outcome = asyncio.run(self._main())
        except BaseException as error:
            problem = str(error) if isinstance(error, AsyncrlError) else f"{type(error).__name__}: {error}"
            refused = isinstance(error, UserError) and not (self._interrupts and self._interrupts.loop_running)
            log_file.handle(logging.LogRecord("asyncrl", logging.ERROR, __file__, 0, "the run failed", None, sys.exc_info()))
            raise
        finally:
            summary = self._totals.summary(outcome, time.monotonic() - started, problem)
            with contextlib.suppress(OSError):
                self._directory.write_summary(summary)
            if problem:
                self._host.observe("on_error", error=problem)
            self._host.observe("on_run_end", outcome=outcome)
            self._host.observe("log_end", summary=summary)
            logging.getLogger("asyncrl").removeHandler(self._bridge)
            logging.getLogger("asyncrl").removeHandler(log_file)
            log_file.close()
            if refused:
                self._directory.remove()
            self._directory.lock.release()
        table = describe(summary, str(self._directory.path))
        with contextlib.suppress(OSError), self._directory.log_file.open("a") as file:
            file.write(f"{table}\n")
        if sys.stdout is not None:
            with contextlib.suppress(BrokenPipeError):
                print(table, flush=True)
        return 0 if outcome == "completed" else INTERRUPTED

    async def _main(self) -> str:
        task = asyncio.current_task()
        assert task is not None
        with Interrupts(task, self._stop) as self._interrupts:
            try:
                await self._train()
            except asyncio.CancelledError:
                if not self._interrupts.received:
                    raise
                task.uncancel()
                return "interrupted"
        return "interrupted" if self._stop.requested and self._totals.steps < self._core.steps else "completed"

    async def _train(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            try:
                await self._train_inside(stack)
            except (EngineError, PublicationError) as error:
                tails = await self._engines.log_tails() if self._engines else ""
                raise (type(error)(f"{error.message}\n{tails}") if tails else error) from error

    async def _train_inside(self, stack: contextlib.AsyncExitStack) -> None:
        core, facts, resumed = self._core, self._facts, self._resumed
        kept_step = resumed.kept_step if resumed else -1
        if resumed:
            log.info("the run goes on from %s", resumed.stored.directory)
            resumed.clear()
        header = RunHeader(
            name=self._directory.name,
            directory=self._directory.path,
            steps=core.steps,
            options=self._config.to_dict(),
            metrics=tuple(declared_metrics(self._config.classes)),
            resumed_step=kept_step,
        )
        self._host.observe("log_start", header=header)
        for note in self._config.notes:
            log.info("%s", note)
        log.info("run directory %s; device %s; starting %d engine(s)", self._directory.path, facts.device, core.num_engines)

        engine_needs: EngineNeeds = self._host.one("engine_needs")()
        rank_needs = EngineNeeds(gpus=1 if facts.device == "cuda" else 0, cpus=1)
        eval_needs = self._eval_plan.needs if self._eval_plan and core.eval_interval else ()
        bundles = [*[engine_needs] * core.num_engines, *[rank_needs] * core.trainer_ranks, *eval_needs]
        cluster = Cluster(core.ray_address, bundles, origin="num_engines, trainer_ranks" + ", eval" * bool(eval_needs))
        staging = staging_directory(core.staging_dir, self._directory.path, self._run_id)
        janitor = Janitor(
            [cluster.temp_dir, Path(core.publish_dir) / f"asyncrl-{self._run_id}", staging], [self._directory.lock.descriptor]
        )
        stack.callback(janitor.close)
        stack.callback(cluster.stop)
        await cluster.start(core.start_timeout)
        assert self._interrupts is not None
        self._interrupts.install()
        await cluster.reserve(core.start_timeout)

        specs = self._config.specs
        self._engines = engines = EngineGroup(cluster, 0, specs, facts)
        stack.push_async_callback(engines.stop)
        trainer = TrainerGroup(cluster, core.num_engines, specs, facts)
        stack.push_async_callback(_quietly(trainer.close, "closing the trainer"))
        rollout = RolloutHandle(specs, facts)
        addresses, (num_parameters, digest) = await asyncio.gather(
            engines.start(
                resumed.stored.model if resumed else self._model,
                host=core.host,
                base_port=core.base_port,
                log_dir=self._directory.path / "logs",
                timeout=core.start_timeout,
            ),
            self._open_trainer(trainer),
        )
        stack.push_async_exit(self._close_rollout(rollout))
        setup = RolloutSetup(
            model=self._model,
            vocab_size=self._vocab_size,
            on_unused=core.on_unused,
            request_timeout=core.request_timeout,
            wait_warning=core.wait_warning,
            publish_timeout=core.publish_timeout,
            trace_groups=core.trace_groups,
            evaluates=core.eval_interval > 0,
            eval_sets=core.eval_sets,
            eval_samples=core.eval_samples,
            version=resumed.version if resumed else 0,
            recorded=resumed.stored.run["rollout"]["recorded"] if resumed else 0,
        )
        await rollout.open(setup, addresses, core.start_timeout)
        if resumed:
            await rollout.restore(resumed.rollout(), resumed.stored.arrays())

        plan = PublishPlan(
            strategy=core.publish_method,
            mode=core.publish_mode,
            timeout=core.publish_timeout,
            run_id=self._run_id,
            directory=Path(core.publish_dir),
            address=await trainer.address(),
            backend="nccl" if facts.device == "cuda" else "gloo",
        )
        publisher = Publisher(plan, trainer, rollout, digest=digest, version=setup.version)
        stack.push_async_callback(publisher.close)
        registry = Registry(declared_metrics(self._config.classes))
        trainer_plugin = self._host.plugin("trainer")
        reporter = Reporter(
            self._host,
            registry,
            self._directory,
            rollout,
            publisher,
            self._totals,
            f"{trainer_plugin.slot}/{trainer_plugin.name}",
            resumed.seconds if resumed else 0.0,
        )
        log.info("model %s: %s parameters", self._model.name, f"{num_parameters:,}")

        evaluate = self._evaluation(rollout, reporter)
        if core.eval_interval and not blocks(self._host.plugin("eval")):
            evaluation = make_evaluation(
                core,
                specs,
                facts,
                self._eval_plan,
                cluster,
                vocab_size=self._vocab_size,
                log_dir=self._directory.path / "logs",
                add_metrics=registry.add,
            )
            stack.push_async_callback(evaluation.close)
            evaluation.start()
            evaluate = evaluation.evaluate
        evals = make_dispatcher(
            core,
            self._host.plugin("eval"),
            trainer,
            model=self._model,
            staging=staging,
            checkpoints=self._directory.checkpoints,
            released=lambda: checkpoints.retire(),
            evaluate=evaluate,
            record=reporter.evaluated,
        )
        stack.push_async_callback(evals.close)
        checkpoints = RunCheckpoints(
            self._directory.checkpoints,
            interval=core.save_interval,
            keep=core.keep_checkpoints,
            trainer=trainer,
            run_state=lambda: self._run_state(loop, rollout, publisher, reporter, evals),
            on_saved=lambda step, path: self._host.observe("on_checkpoint", step=step, directory=path),
            in_use=evals.steps_in_use,
        )
        loop = TrainingLoop(
            steps=core.steps,
            publish_interval=core.publish_interval,
            rollout=rollout,
            trainer=trainer,
            publisher=publisher,
            evals=evals,
            checkpoints=checkpoints,
            on_step=reporter.step,
            stop=self._stop,
            done=resumed.step if resumed else 0,
        )
        if resumed:
            evals.restore(resumed.stored.run["evals"], self._directory.lines("evals.jsonl"))
            await reporter.go_on(
                resumed.report, resumed.trained, self._directory.lines("evals.jsonl"), reported=kept_step == resumed.step
            )
        self._host.observe("on_run_start", run=facts)
        await rollout.start()
        poll = asyncio.ensure_future(reporter.poll_forever())
        stack.callback(poll.cancel)
        self._interrupts.loop_running = True
        try:
            await loop.run()
        finally:
            await reporter.last_poll()

    def _evaluation(self, rollout: RolloutHandle, reporter: Reporter) -> Callable[[Checkpoint], Awaitable[EvalResult]]:
        async def evaluate(checkpoint: Checkpoint) -> EvalResult:
            await reporter.poll()
            before = self._totals.engines
            try:
                return await rollout.evaluate(checkpoint)
            finally:
                await reporter.poll()
                self._totals.engines_in_eval += self._totals.engines - before

        return evaluate

    async def _open_trainer(self, trainer: TrainerGroup) -> tuple[int, str]:
        """Return the number of parameters, and the digest of the weights with which training begins or goes on."""
        opened = await trainer.open(self._model, self._facts, timeout=self._core.start_timeout)
        if not self._resumed:
            return opened.num_parameters, opened.digest
        stored = self._resumed.stored
        digest = await trainer.load(stored.trainer)
        if digest != stored.run["digest"]:
            raise CheckpointError(f"the trainer's weights are not those that {stored.directory} was written with")
        return opened.num_parameters, digest

    async def _run_state(
        self, loop: TrainingLoop, rollout: RolloutHandle, publisher: Publisher, reporter: Reporter, evals: EvalDispatcher
    ) -> tuple[dict[str, Any], Arrays]:
        """Return what a checkpoint holds beside trainer and model."""
        assert loop.trained is not None
        saved, arrays, progress = await rollout.saved()
        reporter.fold(progress)
        state = {
            **saved_identity(self._config),
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
                self._totals.books = await rollout.close(outcome)
            except AsyncrlError as problem:
                if error is None:
                    raise
                log.warning("closing the rollout actor: %s", problem)
            if error is None and (left := _imbalance(self._totals.books)):
                raise BooksError(f"the books do not balance: {left} of {self._totals.books['issued']} groups are unaccounted for")

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

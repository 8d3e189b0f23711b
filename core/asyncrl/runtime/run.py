"""One run from configuration to exit code: check everything, start everything, train, leave nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from asyncrl.authoring import RunFacts
from asyncrl.errors import ActorLost, AsyncrlError, EngineError, PublicationError, RunError, TrainerLost, UserError
from asyncrl.evaluation.setup import check_options, check_staging
from asyncrl.fit import check_fit
from asyncrl.host import Host
from asyncrl.options import RunConfig
from asyncrl.plugins import build_host
from asyncrl.runtime import preflight
from asyncrl.runtime.assembly import Assembly
from asyncrl.runtime.base import Base, Job, start_base
from asyncrl.runtime.directory import RunDirectory, run_name
from asyncrl.runtime.eval_plan import plan_eval_engines, require_own_servers
from asyncrl.runtime.interrupt import Interrupts
from asyncrl.runtime.reporter import LoggerBridge, describe
from asyncrl.runtime.restarts import Restarts
from asyncrl.runtime.resume import Resumption, newest
from asyncrl.runtime.rollout_handle import WHO as ROLLOUT_ACTOR
from asyncrl.runtime.summary import Totals
from asyncrl.training.loop import Stop
from asyncrl.training.stored import steps_in

log = logging.getLogger("asyncrl")
INTERRUPTED = 130


def run_training(config: RunConfig, directory: RunDirectory | None = None, resumed: Resumption | None = None) -> int:
    """Run `config` to its end, from the beginning or from a checkpoint, and return the exit code: 0 completed, 130 interrupted.

    Args:
        directory: of a run that goes on; None makes one.

    Raises:
        UserError: something does not fit; nothing was started.
        AsyncrlError: the run failed; everything was shut down.
    """
    run = _Run(config, directory or RunDirectory(Path(config.core.runs_dir), run_name(config.core.name, config.file)), resumed)
    run.check()
    return run.execute()


class _Run:
    def __init__(self, config: RunConfig, directory: RunDirectory, resumed: Resumption | None) -> None:
        self._config = config
        self._resumed = resumed
        self._core = config.core
        self._facts: RunFacts = replace(
            config.facts(), device=preflight.resolve_device(config.core.device), on_unused=config.core.on_unused
        )
        self._directory = directory
        self._facts = replace(self._facts, run_dir=str(self._directory.path))
        self._host: Host = build_host(config.specs, self._facts)
        self._model = Path()
        self._vocab_size = 0
        self._totals = resumed.totals if resumed else Totals()
        self._stop = Stop()
        self._interrupts: Interrupts | None = None
        self._bridge: LoggerBridge | None = None
        self._started = 0.0
        self._restarts = Restarts(self._core.max_restarts)

    # Before anything starts ---------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse what cannot work, make the task's model if need be, make the run directory."""
        preflight.require_device(self._core, self._facts)
        check_fit(self._host)
        check_options(self._core, self._host.plugin("eval"))
        self._host.each("check_run", run=self._facts)
        preflight.require_bind(self._core)
        preflight.require_ports(self._core)
        self._bridge_log()
        logging.getLogger("asyncrl").setLevel(logging.INFO)
        self._model = preflight.find_model(self._host, self._facts)
        self._vocab_size = preflight.read_vocab_size(self._model)
        self._facts = replace(self._facts, model=str(self._model))
        preflight.require_space(self._core, self._model, len(steps_in(self._directory.checkpoints)))
        check_staging(self._core, self._host.plugin("eval"), preflight.model_bytes(self._model))
        self._eval_plan = plan_eval_engines(self._config, self._host, self._facts)
        if self._eval_plan is not None:
            require_own_servers(self._eval_plan, self._host, self._facts)
        self._directory.create(self._config.to_toml())

    # The run --------------------------------------------------------------------------------------------------------------

    def execute(self) -> int:
        log_file = self._directory.open_log(self._core.log_bytes)
        self._started = time.monotonic() - (self._resumed.seconds if self._resumed else 0.0)
        outcome, problem, refused = "failed", "", False
        try:
            outcome = asyncio.run(self._main())
        except BaseException as error:
            problem = str(error) if isinstance(error, AsyncrlError) else f"{type(error).__name__}: {error}"
            refused = isinstance(error, UserError) and not (self._interrupts and self._interrupts.loop_running)
            log_file.handle(logging.LogRecord("asyncrl", logging.ERROR, __file__, 0, "the run failed", None, sys.exc_info()))
            raise
        finally:
            summary = self._tell_end(outcome, problem)
            with contextlib.suppress(OSError):
                if refused:
                    self._directory.remove()
                elif not self._directory.untouched:
                    self._directory.write_summary(summary)
            assert self._bridge is not None
            logging.getLogger("asyncrl").removeHandler(self._bridge)
            logging.getLogger("asyncrl").removeHandler(log_file)
            log_file.close()
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
                await self._train(self._interrupts)
            except asyncio.CancelledError:
                if not self._interrupts.received:
                    raise
                task.uncancel()
                return "interrupted"
        return "interrupted" if self._stop.requested and self._totals.steps < self._core.steps else "completed"

    async def _train(self, interrupts: Interrupts) -> None:
        """Train, and go on from the newest checkpoint when the trainer is lost, or the rollout actor meanwhile, as often as may be."""
        job = Job(
            config=self._config,
            facts=self._facts,
            host=self._host,
            directory=self._directory,
            resumed=self._resumed,
            model=self._model,
            vocab_size=self._vocab_size,
            eval_plan=self._eval_plan,
            totals=self._totals,
            stop=self._stop,
            restarts=self._restarts,
            started=self._started,
        )
        async with contextlib.AsyncExitStack() as stack:
            base = await start_base(job, interrupts, stack)
            while True:
                try:
                    return await self._attempt(job, base, interrupts)
                except (TrainerLost, ActorLost) as lost:
                    rank = isinstance(lost, TrainerLost)
                    goes_back = rank if interrupts.loop_running else job.again
                    if self._stop.requested or not goes_back:
                        raise
                    self._restarts.take("the trainer" if rank else ROLLOUT_ACTOR, lost.message)
                    interrupts.loop_running = False
                    job = self._go_back(job, lost)
                except UserError as error:
                    if job.again:  # what was written is not at fault, for the run has run with it
                        raise RunError(f"the trainer can't be made anew: {error}") from error
                    raise

    async def _attempt(self, job: Job, base: Base, interrupts: Interrupts) -> None:
        """Start what is not there and train to the end. Raises `TrainerLost` when a trainer rank died or hangs."""
        assembly = Assembly(job, base, interrupts)
        async with contextlib.AsyncExitStack() as stack:
            try:
                await assembly.train(stack)
            except (EngineError, PublicationError) as error:
                if lost := await assembly.trainer.lost() if assembly.trainer else "":
                    raise TrainerLost(lost) from error
                tails = await base.engines.log_tails()
                raise (type(error)(f"{error.message}\n{tails}") if tails else error) from error

    def _go_back(self, job: Job, lost: TrainerLost | ActorLost) -> Job:
        """Return the job that goes on from the newest checkpoint. What plugins of this process know is over, as after a crash."""
        resumed = newest(self._directory)
        log.warning("the run goes back to %s", f"step {resumed.step}" if resumed else "its beginning")
        self._tell_end("failed", lost.message)
        self._host = build_host(self._config.specs, self._facts)
        self._bridge_log()
        self._totals = self._totals.go_back(resumed.totals if resumed else Totals())
        return job.goes_on(self._host, resumed, self._totals)

    # What plugins of this process are told ----------------------------------------------------------------------------------

    def _bridge_log(self) -> None:
        """Hand log lines to the loggers that there are now."""
        logger = logging.getLogger("asyncrl")
        if self._bridge is not None:
            logger.removeHandler(self._bridge)
        self._bridge = LoggerBridge(self._host)
        logger.addHandler(self._bridge)

    def _tell_end(self, outcome: str, problem: str) -> dict[str, Any]:
        """Tell observers and loggers how it ended; return the summary."""
        summary = self._totals.summary(outcome, time.monotonic() - self._started, problem)
        if problem:
            self._host.observe("on_error", error=problem)
        self._host.observe("on_run_end", outcome=outcome)
        self._host.observe("log_end", summary=summary)
        return summary

"""A run's configuration becomes a simulated run: its own plugins around scripted engines, trainer and task, everything checked first."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from asyncrl.authoring import RunFacts
from asyncrl.errors import OptionError, UserError
from asyncrl.evaluation.setup import blocks, check_options
from asyncrl.fields import plain
from asyncrl.fit import check_fit
from asyncrl.host import Host
from asyncrl.options import RunConfig
from asyncrl.plugins import build_host
from asyncrl.rollout.claims import deadline_hook
from asyncrl.run_file import SIMULATE
from asyncrl.simulation.clock import run_virtual
from asyncrl.simulation.engine import ScriptedEngine
from asyncrl.simulation.lengths import ConstantLengths, Lengths, LognormalLengths, RecordedGroup, RecordedLengths
from asyncrl.simulation.measured import Measured
from asyncrl.simulation.options import SimulateOptions
from asyncrl.simulation.run import SimulatedRun
from asyncrl.simulation.script import EngineEvent, LengthScript
from asyncrl.simulation.task import REAL_SLOTS, ScriptedTask, simulation_host
from asyncrl.simulation.trace import RunTimes, Trace, read_trace

PATIENCE = 100
"""How many times as long as the slowest schedule a simulation may take before it counts as stuck."""
STUCK_SECONDS = 600.0
"""Virtual seconds after which a trainer that waits asks whether anything can still come."""


@dataclass(frozen=True)
class Scenario:
    """Everything that a simulation of one configuration needs. Seconds are virtual.

    Attributes:
        config: of the run.
        facts: of the run as it is simulated.
        engines, slots: how many engines, and slots in each.
        lengths: law of the samples' lengths, in tokens; none is longer than `max_new_tokens`.
        lengths_text: the same for people.
        recorded: the groups of a trace; none without one.
        train_seconds: a batch takes in the trainer; the mean where they were recorded.
        recorded_times: of the run that was recorded, unless `train_seconds` was written.
        publish_seconds: engines stand still at a publication.
        eval_seconds: an evaluation takes, every `eval_interval` steps.
        eval_interval: 0 where evaluations take no time.
        eval_blocks: whether they are on the rollout engines, and training waits for them.
        export_seconds: training waits for a snapshot, before an evaluation elsewhere.
        warmup_steps: left out of what is said by step.
        bound: greatest staleness in versions that the staleness policy allows; -1 where it names none.
        bound_waits: whether the trainer waits for groups that would become older.
        notes: what the user should be told.
    """

    config: RunConfig
    facts: RunFacts
    engines: int
    slots: int
    lengths: Lengths
    lengths_text: str
    recorded: tuple[RecordedGroup, ...]
    train_seconds: float
    recorded_times: RunTimes | None
    publish_seconds: float
    eval_seconds: float
    eval_interval: int
    eval_blocks: bool
    export_seconds: float
    warmup_steps: int
    bound: int
    bound_waits: bool
    notes: tuple[str, ...]

    def run(self, on_step: Callable[[int], None] = lambda step: None) -> Measured:
        """Simulate, calling `on_step` with the number of each step that begins to train.

        Raises:
            DeadlineExceeded: nothing can happen any more, or it takes far longer than any schedule should.
            AsyncrlError: what ended the run.
        """
        log = logging.getLogger("asyncrl")
        log.addFilter(_is_no_wait)
        try:
            return run_virtual(self._run(on_step), limit=self._limit())
        finally:
            log.removeFilter(_is_no_wait)

    async def _run(self, on_step: Callable[[int], None]) -> Measured:
        core, options = self.config.core, self.config.simulate

        def train_seconds(step: int) -> float:
            on_step(step)
            return self.recorded_times.trainer_seconds(step) if self.recorded_times else self.train_seconds

        run = SimulatedRun(
            _host(self.config, self.facts, self.recorded),
            self.facts,
            [self._engine(index) for index in range(self.engines)],
            train_seconds=train_seconds,
            publish_seconds=self.publish_seconds,
            eval_seconds=self.eval_seconds,
            eval_interval=self.eval_interval,
            eval_blocks=self.eval_blocks,
            eval_max_in_flight=core.eval_max_in_flight,
            eval_overflow=core.eval_overflow,
            export_seconds=self.export_seconds,
            pause_mode=core.publish_mode,
            on_unused=core.on_unused,
            wait_warning=max(STUCK_SECONDS, self.train_seconds + self.publish_seconds + self.eval_seconds),
            keep_batches=False,
            faults=[EngineEvent(fault.engine, fault.at, fault.kind, fault.factor) for fault in options.faults],
        )
        await run.run()
        return run.measured(warmup_steps=self.warmup_steps)

    def _engine(self, index: int) -> ScriptedEngine:
        core, options = self.config.core, self.config.simulate
        factor = functools.partial(load_factor, options.load_slowdown, self.slots)
        return ScriptedEngine(
            f"engine-{index}",
            slots=self.slots,
            script=LengthScript(self.lengths, per_token=1 / options.tokens_per_second, limit=core.max_new_tokens),
            request_timeout=core.request_timeout,
            load_factor=factor if options.load_slowdown > 1 else None,
        )

    def _limit(self) -> float:
        """Seconds after which the simulation counts as stuck: far more than one engine alone needs."""
        core, options = self.config.core, self.config.simulate
        slowest = max((fault.factor for fault in options.faults), default=1.0)
        longest = max(core.max_new_tokens / options.tokens_per_second, _seconds(self.recorded))
        waves = math.ceil(core.batch_size * core.group_size / self.slots)
        step = waves * longest * max(1.0, slowest) + self.train_seconds + self.publish_seconds
        step += self.eval_seconds + self.export_seconds
        last = max((fault.at for fault in options.faults), default=0.0)
        return last + PATIENCE * (core.request_timeout + self.facts.steps * step)

    def to_dict(self) -> dict[str, Any]:
        """What was simulated, as JSON data."""
        return {
            "plugins": {
                slot: {
                    plugin.wanted: plain(plugin.options, secrets=False)
                    for plugin in self.config.plugins
                    if plugin.found.slot == slot
                }
                for slot in REAL_SLOTS
            },
            "batch_size": self.facts.batch_size,
            "group_size": self.facts.group_size,
            "max_concurrent_samples": self.facts.max_concurrent_samples,
            "seed": self.facts.seed,
            "engines": self.engines,
            "slots": self.slots,
            "lengths": self.lengths_text,
            "train_seconds": self.train_seconds,
            "publish_seconds": self.publish_seconds,
            "eval_seconds": self.eval_seconds,
            "export_seconds": self.export_seconds,
            "bound": self.bound if self.bound >= 0 else None,
            "bound_waits": self.bound_waits,
        }


def prepare(config: RunConfig) -> Scenario:
    """Check a configuration as a simulation and return what it needs.

    Raises:
        UserError: the trace is wrong, or options or plugins can't work together; the origin names options as `RunConfig.located` does.
        PluginLoadError: a plugin can't be constructed, or its hooks are wrong.
    """
    core, options = config.core, config.simulate
    engines = options.engines or core.num_engines
    slots = options.slots or math.ceil(core.concurrency / engines)
    steps = options.steps or core.steps
    warmup = options.warmup_steps if options.warmup_steps is not None else steps // 10
    if warmup >= steps:
        raise _wrong(f"warmup_steps = {warmup} leaves nothing of {steps} steps", "warmup_steps", f"at most {steps - 1}")
    _check_faults(options, engines)
    trace = read_trace(options.trace) if options.trace is not None else None
    lengths, text = _lengths(config, trace)
    recorded = trace.groups if trace is not None else ()
    device = "cpu" if core.device == "auto" else core.device
    facts = replace(config.facts(), steps=steps, num_engines=engines, device=device)
    host = _host(config, facts, recorded)
    host.each("check_run", run=facts)
    check_fit(host)
    ask = deadline_hook(host)
    deadline = ask(0) if ask is not None else None
    times = trace.times if trace is not None else None
    backend = next(kind for kind in config.classes if kind.slot == "eval")
    check_options(core, backend)
    blocking = blocks(backend)
    busy = min(engines * slots, core.concurrency)
    mean_seconds = _mean_seconds(recorded) or lengths.mean / options.tokens_per_second
    mean_seconds *= load_factor(options.load_slowdown, slots, math.ceil(busy / engines))
    generation = core.batch_size * core.group_size * mean_seconds / busy
    train, publish, evaluation, export = _times(options, times, generation, blocking)
    return Scenario(
        config=config,
        facts=facts,
        engines=engines,
        slots=slots,
        lengths=lengths,
        lengths_text=text,
        recorded=recorded,
        train_seconds=train,
        recorded_times=times if options.train_seconds is None else None,
        publish_seconds=publish,
        eval_seconds=evaluation,
        eval_interval=core.eval_interval if evaluation or export else 0,
        eval_blocks=blocking,
        export_seconds=export,
        warmup_steps=warmup,
        bound=deadline.version if deadline is not None else -1,
        bound_waits=deadline is not None and deadline.waits,
        notes=config.notes,
    )


def _is_no_wait(record: logging.LogRecord) -> bool:
    """Whether a line is about anything but the gate's waits, which are what a simulation measures."""
    return record.module != "gate"


def _host(config: RunConfig, facts: RunFacts, recorded: tuple[RecordedGroup, ...]) -> Host:
    plugins = build_host(config.specs, facts, slots=REAL_SLOTS)
    return simulation_host(plugins.actives, ScriptedTask(facts, recorded=recorded), plugins.trace)


def load_factor(slowdown: float, slots: int, running: int) -> float:
    """Return the seconds a token takes over those in a full engine: 1 with all `slots` running, 1 / `slowdown` with one."""
    return (1 + (slowdown - 1) * (running - 1) / max(1, slots - 1)) / slowdown if slots > 1 else 1.0


def _times(
    options: SimulateOptions, times: RunTimes | None, generation: float, blocking: bool
) -> tuple[float, float, float, float]:
    """Seconds of training a batch, a publication, an evaluation and its export: as written, else as recorded, else a guess.

    Of a recorded publication the engines stand still for a part; the rest of it and checkpoints keep the trainer from training, as a
    step does. What a recorded run has waited for evaluations was the evaluations themselves (`blocking`) or their exports.
    """
    train, publish, evaluation, export = generation, 0.0, 0.0, 0.0
    if times is not None:
        train, publish = times.trainer_mean, times.paused
        evaluation, export = (times.evaluation, 0.0) if blocking else (0.0, times.evaluation)
    return (
        train if options.train_seconds is None else options.train_seconds,
        publish if options.publish_seconds is None else options.publish_seconds,
        evaluation if options.eval_seconds is None else options.eval_seconds,
        0.0 if blocking else export if options.export_seconds is None else options.export_seconds,
    )


def _lengths(config: RunConfig, trace: Trace | None) -> tuple[Lengths, str]:
    core, options = config.core, config.simulate
    speed = f"{options.tokens_per_second:g} tokens/s a slot"
    if trace is not None:
        recorded = RecordedLengths(trace.groups)
        if recorded.longest > core.max_new_tokens:
            raise OptionError(
                f"the trace has a sample of {recorded.longest:.0f} tokens, max_new_tokens is {core.max_new_tokens}",
                origin=f"{SIMULATE}.trace, max_new_tokens",
                remedy=f"set max_new_tokens to at least {recorded.longest:.0f}",
            )
        pace = "at the recorded speed" if _seconds(trace.groups) else f"at {speed}"
        return recorded, f"lengths of {len(trace.groups):,} recorded groups, mean {recorded.mean:.1f} tokens, {pace}"
    mean = options.length_mean or max(1.0, core.max_new_tokens / 4)
    if not 1 <= mean <= core.max_new_tokens:
        raise _wrong(
            f"length_mean = {mean:g} does not lie in 1 to max_new_tokens = {core.max_new_tokens}",
            "length_mean",
            "change one of them",
            "max_new_tokens",
        )
    if options.lengths == "constant":
        return ConstantLengths(round(mean)), f"{round(mean)} tokens a sample at {speed}"
    longest = min(core.max_new_tokens / mean, options.length_clip or math.inf)
    law = LognormalLengths(mean, options.length_sigma, longest, seed=core.seed)
    return law, f"lognormal lengths, mean {law.mean:.1f}, longest {law.longest:.0f} tokens, at {speed}"


def _check_faults(options: SimulateOptions, engines: int) -> None:
    down: set[int] = set()
    for fault in sorted(options.faults, key=lambda fault: fault.at):
        if fault.engine >= engines:
            raise _wrong(f"there is no engine {fault.engine}", "faults", f"the {engines} engine(s) are counted from 0")
        if fault.kind == "slow":
            continue
        if fault.factor != 1.0:
            raise _wrong(f"{fault.kind} has no factor", "faults", "only slow has one")
        if fault.kind == "revive" and fault.engine not in down:
            raise _wrong(f"engine {fault.engine} is not down at {fault.at:g} s", "faults", "revive ends a die or a hang")
        if fault.kind != "revive" and fault.engine in down:
            raise _wrong(f"engine {fault.engine} is down already at {fault.at:g} s", "faults", "revive it first")
        down ^= {fault.engine}


def _wrong(message: str, option: str, remedy: str, *others: str) -> UserError:
    return OptionError(message, origin=", ".join([f"{SIMULATE}.{option}", *others]), remedy=remedy)


def _seconds(groups: tuple[RecordedGroup, ...]) -> float:
    """The longest recorded time of a sample; 0 where none was recorded."""
    return max((second for group in groups for second in group.seconds), default=0.0)


def _mean_seconds(groups: tuple[RecordedGroup, ...]) -> float:
    """Mean recorded seconds of a sample; 0 unless every group has them."""
    if not groups or not all(group.seconds for group in groups):
        return 0.0
    seconds = [second for group in groups for second in group.seconds]
    return sum(seconds) / len(seconds)

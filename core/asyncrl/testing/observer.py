"""The suite of observers: they see a whole run, raise nothing, and change nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from asyncrl.authoring import Plugin, RunFacts
from asyncrl.errors import AsyncrlError
from asyncrl.evaluation.records import EvalRecord
from asyncrl.hook_checks import implemented, wrapped
from asyncrl.host import Active
from asyncrl.loggers import MetricRecord
from asyncrl.metrics import Axis
from asyncrl.simulation.run import SimulatedRun
from asyncrl.testing.base import BaseSuite
from asyncrl.testing.fakes import FillSlots, stand_in
from asyncrl.testing.groups import make_group
from asyncrl.testing.records import RESULT
from asyncrl.testing.rules import broken, expect
from asyncrl.testing.runs import cast, simulate_with_faults
from asyncrl.training.interfaces import StepReport

REPORT = StepReport(metrics={}, update_norm=0.5, num_tokens=64, busy_seconds=0.25)


class ObserverSuite(BaseSuite):
    """Contract of an observer: its `on_*` hooks watch, its wrappers pass on what they got, and the run is the same without it."""

    slot = "observers"

    def test_it_watches_something(self) -> None:
        """It implements a hook that is called."""
        hooks = implemented(self.ready().kind)
        expect(
            [hook for hook in hooks if hook.startswith("on_") or hook == "score_group"] or wrapped(self.ready().kind),
            promised="an observer implements an on_* hook, score_group, or wraps a hook",
            happened=f"it implements {', '.join(hooks) or 'nothing'}",
            fix="mark a method @hookimpl that has the name of an on_* hook",
        )

    def test_it_raises_nothing_in_a_run(self) -> None:
        """A whole run with faults, and everything that the controller tells, goes by without an exception."""
        run = self.facts(steps=8, max_concurrent_samples=24)
        active = self.make(run=run)
        host = cast(stand_in("scheduler", FillSlots, run), run, observers=[active])
        for hook, arguments in self._controller(run):
            try:
                host.each(hook, **arguments)
            except AsyncrlError as error:
                broken(
                    promised="an observer's hook takes whatever a run tells",
                    happened=f"{hook} raised: {error}",
                    fix="catch what can fail in it; core would count it, warn once and go on",
                )
        self._run(host, run)
        failures = {label: count for state in host.metrics.drain().values() for label, count in state.items()}
        expect(
            not failures,
            promised="an observer's hook takes whatever a run tells",
            happened=f"in a run of {run.steps} steps its hooks raised {sum(failures.values()):.0f} times (the log says where)",
            fix="look at `asyncrl` log lines of this test; core counts such failures, warns once and goes on",
        )

    def test_the_run_is_the_same_without_it(self) -> None:
        """The same groups are trained in the same batches at the same times."""
        run = self.facts(steps=8, max_concurrent_samples=24)
        scheduler = stand_in("scheduler", FillSlots, run)
        ended = [
            self._run(cast(scheduler, run, observers=observers), run) for observers in ([self.make(run=run)], list[Active]())
        ]
        batches = [[batch.prompt_ids.tolist() for batch in one.batches] for one in ended]
        seconds = [one.measured().seconds for one in ended]
        expect(
            batches[0] == batches[1] and seconds[0] == seconds[1],
            promised="whoever watches a run does not change it",
            happened=lambda: (
                f"with it the batches were {batches[0]} after {seconds[0]:g} s, without it {batches[1]} after {seconds[1]:g} s"
            ),
            fix="change nothing that a hook is given, and let a wrapper return what it got",
        )

    @classmethod
    def exercise(cls, options: Mapping[str, Any]) -> list[Plugin]:
        """Tell it a whole run."""
        run = cls.facts(steps=8, max_concurrent_samples=24)
        active = cls.make(options, run)
        host = cast(stand_in("scheduler", FillSlots, run), run, observers=[active])
        for hook, arguments in cls._controller(run):
            host.observe(hook, **arguments)
        cls._run(host, run)
        if host.has("score_group"):
            host.one("score_group")(group=make_group(1))
        return [active.plugin]

    @classmethod
    def _run(cls, host: Any, run: RunFacts) -> SimulatedRun:
        try:
            return simulate_with_faults(host, run)
        except AsyncrlError as error:
            broken(
                promised="a run goes on whatever an observer does",
                happened=f"it ended with {type(error).__name__}: {error}",
                fix="let a wrapper yield once and return what it got; raise nothing in score_group",
            )

    @classmethod
    def _controller(cls, run: RunFacts) -> Iterator[tuple[str, dict[str, Any]]]:
        """What the controller tells, beside what a simulated run does."""
        yield "on_run_start", {"run": run}
        yield "on_group_finished", {"group": make_group(1)}
        yield "on_group_ended", {"prompt_id": 1, "fate": "stale", "tokens": 12}
        for step in (1, 2):
            yield "on_step", {"step": step, "report": REPORT}
            yield "on_weights_published", {"version": step}
            yield "on_metrics", {"record": MetricRecord(Axis.TRAIN_STEP, step, 1_700_000_000.0, {"rollout/buffer_size": 3.0})}
        yield "on_checkpoint", {"step": 2, "directory": Path("checkpoint-2")}
        yield "on_eval", {"record": EvalRecord(1, 1, sets={"held-out": RESULT}, lag_steps=1)}
        yield "on_eval", {"record": EvalRecord(2, 2, skipped="busy")}
        yield "on_error", {"error": "EnginesLost: no engine is left"}
        yield "on_run_end", {"outcome": "failed"}

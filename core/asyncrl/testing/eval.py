"""The suite of eval backends: each point ends, as a result for every set or as a skip with its reason."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from asyncrl.authoring import EvalPlugin, Plugin, RunFacts
from asyncrl.errors import EvalSkip
from asyncrl.evaluation.records import Checkpoint, EvalResult, EvalSet
from asyncrl.evaluation.sets import RunEvalSets
from asyncrl.host import Host
from asyncrl.ledger import reason_word
from asyncrl.rollout.engine import GenerateRequest
from asyncrl.rollout.group_sampler import GroupSampler
from asyncrl.rollout.pool import EnginePool
from asyncrl.samples import Completion, SamplingParams
from asyncrl.simulation.engine import ScriptedEngine
from asyncrl.simulation.script import Plan
from asyncrl.testing.base import BaseSuite
from asyncrl.testing.fakes import OneTurn, stand_in
from asyncrl.testing.rules import broken, expect
from asyncrl.testing.sampling import make_prompt, make_sampler

SETS = (
    EvalSet("held-out", tuple(make_prompt(number) for number in range(6)), SamplingParams(16, temperature=0.0)),
    EvalSet("other", tuple(make_prompt(number) for number in range(3)), SamplingParams(16), samples_per_prompt=2),
)


class EvalSuite(BaseSuite):
    """Contract of an eval backend: evaluate one version on every set, or raise `EvalSkip(reason)`.

    The rollout engines of these rules are scripted. A backend with engines of its own finds no cluster and no snapshot here: it must skip
    the point, not fail and not hang.

    A subclass may also set:

    Attributes:
        point_seconds: in which a point must have ended, one way or the other.
    """

    slot = "eval"
    point_seconds: ClassVar[float] = 60.0

    def test_a_point_ends_as_a_result_or_a_skip(self) -> None:
        """A result has every set and no other; the reason of a skip is a short word."""
        outcome = self._evaluate(self.host(), _Engines())
        if isinstance(outcome, EvalSkip):
            self._check_reason(outcome)
            return
        expect(
            isinstance(outcome, EvalResult) and set(outcome.sets) == {one.name for one in SETS},
            promised="evaluate_checkpoint answers an EvalResult with every set, or raises EvalSkip(reason)",
            happened=f"it ended with {outcome!r}",
            fix="return await sets.run(engines), and turn what goes wrong into EvalSkip('a_short_reason')",
        )

    def test_one_point_does_not_spoil_the_next(self) -> None:
        """Asked again, about a later version, it answers again as it did."""
        host = self.host()
        first, second = (self._evaluate(host, _Engines(), step=step) for step in (2, 4))
        expect(
            type(first) is type(second),
            promised="every point is evaluated on its own",
            happened=f"the first ended with {first!r}, the second with {second!r}",
            fix="leave the backend as it was when a point has ended",
        )

    def test_engines_that_fail_end_the_point(self) -> None:
        """With engines that answer nothing but errors, a point ends as a result with failed samples, or as a skip."""
        outcome = self._evaluate(self.host(), _Engines(fails=True))
        if isinstance(outcome, EvalSkip):
            self._check_reason(outcome)
            return
        expect(
            isinstance(outcome, EvalResult),
            promised="a point whose engines fail ends as a result with failed samples, or as a skip",
            happened=f"it ended with {outcome!r}",
            fix="raise EvalSkip('unhealthy') where nothing can be had",
        )

    def test_a_cancelled_point_ends(self) -> None:
        """Cancelled in the middle, as at the end of a run, it lets go."""

        async def main() -> bool:
            engines = _Engines(hangs=True)
            call = asyncio.ensure_future(_evaluate(self.host(), engines, self.facts(), 2))
            await asyncio.wait([call], timeout=0.5)
            call.cancel()
            await asyncio.wait([call], timeout=self.point_seconds)
            return call.done()

        expect(
            asyncio.run(main()),
            promised="a point that is cancelled ends",
            happened=f"{self.point_seconds:g} s after its cancellation it had not",
            fix="never swallow asyncio.CancelledError",
        )

    def test_it_generates_on_the_rollout_engines_only_if_it_says_so(self) -> None:
        """Without `uses_rollout_engines`, submission goes on meanwhile, so the engines are not its to use."""
        engines = _Engines()
        self._evaluate(self.host(), engines)
        if getattr(self.ready().kind, "uses_rollout_engines", False):
            pytest.skip("it says that it uses the rollout engines")
        expect(
            not engines.requests,
            promised="a backend with uses_rollout_engines = False leaves the rollout engines alone",
            happened=f"it sent them {engines.requests} requests",
            fix="set uses_rollout_engines = True, or evaluate on engines of its own",
        )

    def test_a_snapshot_that_is_missing_skips_the_point(self) -> None:
        """A backend that needs a snapshot skips a point whose directory is not there."""
        kind = self.ready().kind
        if not getattr(kind, "needs_snapshot", EvalPlugin.needs_snapshot):
            pytest.skip("it needs no snapshot")
        outcome = self._evaluate(self.host(), _Engines(), directory=Path("/no/such/snapshot"))
        expect(
            isinstance(outcome, EvalSkip),
            promised="a point whose snapshot is missing or incomplete is skipped",
            happened=f"it ended with {outcome!r}",
            fix="raise EvalSkip('ckpt_missing') unless the directory has its completion marker",
        )

    @classmethod
    def exercise(cls, options: Mapping[str, Any]) -> list[Plugin]:
        """Evaluate two points, one with engines that fail."""
        active = cls.make(options)
        suite = cls()
        suite._evaluate(cls.host(active), _Engines())
        suite._evaluate(cls.host(active), _Engines(fails=True))
        return [active.plugin]

    def _evaluate(self, host: Host, engines: _Engines, *, step: int = 2, directory: Path | None = None) -> Any:
        """Return the result, the skip, or what else was raised."""

        async def main() -> Any:
            call = asyncio.ensure_future(_evaluate(host, engines, self.facts(), step, directory))
            await asyncio.wait([call], timeout=self.point_seconds)
            if call.done():
                return call.exception() or call.result()
            call.cancel()
            await asyncio.wait([call], timeout=1.0)
            return _NO_END

        outcome = asyncio.run(main())
        if outcome is _NO_END:
            broken(
                promised=f"a point ends within {self.point_seconds:g} s, when its engines answer at once",
                happened="it had not ended",
                fix="give every wait a deadline, and raise EvalSkip('unhealthy') past it; or raise point_seconds in the suite",
            )
        return outcome

    def _check_reason(self, skip: EvalSkip) -> None:
        expect(
            skip.message and reason_word(skip.message) == skip.message.partition(":")[0],
            promised="the reason of a skip is a short word, or one followed by ': ' and more",
            happened=f"it was {skip.message!r}",
            fix="raise EvalSkip('unhealthy'), or EvalSkip('unhealthy: the server at … does not answer')",
        )


_NO_END = object()


class _Engines:
    """Rollout engines that answer at once, with errors, or never."""

    def __init__(self, *, fails: bool = False, hangs: bool = False) -> None:
        fault: Any = "error" if fails else "hang" if hangs else ""
        engine = ScriptedEngine(script=lambda request, number: Plan(tokens=4, per_token=0.0, fault=fault))
        self._pool = EnginePool([engine], max_attempts=1, health_interval=0)
        self.engines = self._pool.engines
        self.requests = 0

    async def generate(self, request: GenerateRequest) -> Completion:
        self.requests += 1
        return await self._pool.generate(request)


async def _evaluate(host: Host, engines: _Engines, run: RunFacts, step: int, directory: Path | None = None) -> EvalResult:
    produce = Host([stand_in("producer", OneTurn, run)]).one("produce")

    def sampler(own: Any, one: EvalSet) -> GroupSampler:
        made = make_sampler(own, run)
        made.group_size, made.params = one.samples_per_prompt, one.params
        return made

    sets = RunEvalSets(SETS, engines, produce=produce, make_sampler=sampler, max_concurrent_samples=8)
    result: EvalResult = await host.one("evaluate_checkpoint")(checkpoint=Checkpoint(step, step, directory), sets=sets)
    return result

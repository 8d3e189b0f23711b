"""The suite of eval backends: each point ends, as a result for every set or as a skip with its reason."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from asyncrl.authoring import EvalPlugin, Plugin, RunFacts
from asyncrl.errors import EvalSkip
from asyncrl.evaluation.pin import OwnEngines, OwnEvalSets
from asyncrl.evaluation.records import Checkpoint, EvalResult, EvalSet
from asyncrl.evaluation.sets import RunEvalSets
from asyncrl.evaluation.setup import blocks
from asyncrl.host import Host
from asyncrl.ledger import reason_word
from asyncrl.rollout.engine import EngineSet, GenerateRequest, Generates
from asyncrl.rollout.group_sampler import GroupSampler
from asyncrl.rollout.pool import EnginePool
from asyncrl.runtime.eval_plan import fault_of
from asyncrl.samples import Completion, SamplingParams
from asyncrl.simulation.engine import ScriptedEngine
from asyncrl.simulation.script import Plan
from asyncrl.testing.base import BaseSuite
from asyncrl.testing.fakes import OneTurn, stand_in
from asyncrl.testing.rules import broken, expect
from asyncrl.testing.sampling import make_prompt, make_sampler
from asyncrl.training.snapshots import mark_complete

SETS = (
    EvalSet("held-out", tuple(make_prompt(number) for number in range(6)), SamplingParams(16, temperature=0.0)),
    EvalSet("other", tuple(make_prompt(number) for number in range(3)), SamplingParams(16), samples_per_prompt=2),
)

ROLLOUT = EngineSet("torch", {"dtype": "float32"}, 2)
"""The rollout engines of which a backend makes its own."""


class EvalSuite(BaseSuite):
    """Contract of an eval backend: evaluate one version on every set, or raise `EvalSkip(reason)`.

    The engines of these rules are scripted: the rollout's, and those that a backend asks for with `eval_engines`. A snapshot is a
    directory that is complete but holds no weights. A backend that needs more than that, such as a service, finds none: it must skip the
    point, not fail and not hang.

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
        """Asked about a later version, it answers as a backend that was asked nothing before."""
        host = self.host()
        self._evaluate(host, _Engines(), step=2)
        second = self._evaluate(host, _Engines(), step=4)
        alone = self._evaluate(self.host(), _Engines(), step=4)
        expect(
            type(second) is type(alone),
            promised="every point is evaluated on its own",
            happened=f"after another point it ended with {second!r}, alone with {alone!r}",
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
            call = asyncio.ensure_future(_evaluate(self.host(), engines, self.facts(), 2, None))
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
        self._require_snapshots()
        outcome = self._evaluate(self.host(), _Engines(), directory=Path("/no/such/snapshot"))
        expect(
            isinstance(outcome, EvalSkip),
            promised="a point whose snapshot is missing or incomplete is skipped",
            happened=f"it ended with {outcome!r}",
            fix="call sets.pin(checkpoint), or checkpoint.require(), before anything else",
        )

    def test_a_snapshot_is_left_as_it_was(self) -> None:
        """The directory is not the backend's: the dispatcher removes it, and it may be one of the run's checkpoints."""
        self._require_snapshots()
        with _snapshot() as directory:
            before = _content(directory)
            self._evaluate(self.host(), _Engines(), directory=directory)
            after = _content(directory)
        expect(
            after == before,
            promised="a backend reads the checkpoint's directory and changes nothing in it",
            happened=f"it held {sorted(before)}, and afterwards {sorted(after)}",
            fix="copy what shall be changed",
        )

    def test_it_says_which_engines_it_wants(self) -> None:
        """`eval_engines` answers an EngineSet, made of the rollout's; a backend that uses the rollout engines has no such hook."""
        host = self.host()
        if not host.has("eval_engines"):
            pytest.skip("it asks for no engines of its own")
        expect(
            not blocks(host.plugin("eval")),
            promised="a backend evaluates on the rollout engines, or on engines of its own",
            happened="it has uses_rollout_engines = True and implements eval_engines",
            fix="leave out either",
        )
        answer = host.one("eval_engines")(rollout=ROLLOUT)
        expect(
            not fault_of(answer),
            promised="eval_engines answers an EngineSet, made of the rollout's: its engines are placed, launched or attached to",
            happened=f"it answered {fault_of(answer)}",
            fix="return rollout.derive(count, overrides), rollout.launched(Launch(…)) or rollout.attached(urls)",
        )

    def test_it_evaluates_the_checkpoint_on_its_own_engines(self) -> None:
        """With engines of its own that are healthy and a snapshot that is complete, a point is a result of that version."""
        host = self._host_with_engines()
        outcome = self._evaluate(host, _Engines(), step=3)
        versions = {one.version_mean for one in outcome.sets.values()} if isinstance(outcome, EvalResult) else set()
        expect(
            versions == {3.0},
            promised="a backend with engines of its own brings them to the checkpoint and evaluates there",
            happened=f"asked for version 3, it ended with {outcome!r}",
            fix="await sets.pin(checkpoint), then return await sets.run(sets.engines)",
        )

    def test_engines_of_another_version_give_no_result(self) -> None:
        """When its engines still serve something else after the pin, the point is skipped."""
        host = self._host_with_engines()
        outcome = self._evaluate(host, _Engines(), step=3, stubborn=True)
        expect(
            isinstance(outcome, EvalSkip),
            promised="a point whose engines can't be brought to the checkpoint is skipped",
            happened=f"it ended with {outcome!r}",
            fix="let the EvalSkip of sets.pin pass",
        )

    @classmethod
    def exercise(cls, options: Mapping[str, Any]) -> list[Plugin]:
        """Evaluate two points, one with engines that fail."""
        active = cls.make(options)
        suite = cls()
        suite._evaluate(cls.host(active), _Engines())
        suite._evaluate(cls.host(active), _Engines(fails=True))
        return [active.plugin]

    def _require_snapshots(self) -> None:
        if not getattr(self.ready().kind, "needs_snapshot", EvalPlugin.needs_snapshot):
            pytest.skip("it needs no snapshot")

    def _host_with_engines(self) -> Host:
        host = self.host()
        if not host.has("eval_engines") or blocks(host.plugin("eval")):
            pytest.skip("it evaluates on no engines of its own")
        return host

    def _evaluate(
        self, host: Host, engines: _Engines, *, step: int = 2, directory: Path | None = None, stubborn: bool = False
    ) -> Any:
        """Return the result, the skip, or what else was raised."""

        async def main() -> Any:
            call = asyncio.ensure_future(_evaluate(host, engines, self.facts(), step, directory, stubborn=stubborn))
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


def _script(fault: Any) -> Callable[[GenerateRequest, int], Plan]:
    return lambda request, number: Plan(tokens=4, per_token=0.0, fault=fault)


class _Engines:
    """Rollout engines that answer at once, with errors, or never. `fault` is what happens to each request."""

    def __init__(self, *, fails: bool = False, hangs: bool = False) -> None:
        self.fault = "error" if fails else "hang" if hangs else ""
        self._pool = EnginePool([ScriptedEngine(script=_script(self.fault))], max_attempts=1, health_interval=0)
        self.engines = self._pool.engines
        self.requests = 0

    async def generate(self, request: GenerateRequest) -> Completion:
        self.requests += 1
        return await self._pool.generate(request)


class _OwnEngine(ScriptedEngine):
    """An engine of the backend's own. A stubborn one takes new weights, and serves the old ones."""

    comparable_digest = True

    def __init__(self, number: int, fault: str, stubborn: bool) -> None:
        super().__init__(f"eval-engine-{number}", script=_script(fault))
        self._stubborn = stubborn

    async def load_from_disk(self, path: Path, version: int, *, flush_cache: bool) -> None:
        if not self._stubborn:
            await super().load_from_disk(path, version, flush_cache=flush_cache)

    async def served_version(self) -> int:
        return self.version

    async def look(self) -> dict[str, Any]:
        return {"weight_version": str(self.version)}

    def give_up(self) -> None:
        return None


class _Sets(OwnEvalSets):
    """What a backend beside the rollout engines is handed; if it uses those all the same, that is told by the rule for it."""

    def __init__(self, runs: RunEvalSets, own: OwnEngines | None, rollout: _Engines) -> None:
        super().__init__(runs, own)
        self._rollout = rollout

    @property
    def rollout_engines(self) -> Generates:
        return self._rollout


@contextmanager
def _snapshot() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="asyncrl-suite-") as folder:
        directory = Path(folder) / "step-2"
        directory.mkdir()
        (directory / "config.json").write_text('{"vocab_size": 32768}')
        (directory / "model.safetensors").write_bytes(bytes(16))
        mark_complete(directory)
        yield directory


def _content(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def _own_engines(host: Host, fault: str, stubborn: bool) -> OwnEngines | None:
    if not host.has("eval_engines"):
        return None
    answer = host.one("eval_engines")(rollout=ROLLOUT)
    count = 1 if fault_of(answer) else answer.count  # a wrong answer is told by the rule for it
    engines: Any = [_OwnEngine(number, fault, stubborn) for number in range(count)]
    pool = EnginePool(engines, max_attempts=1, health_interval=0)
    return OwnEngines(engines, pool, must_pin=bool(host.plugin("eval").needs_snapshot))


async def _evaluate(
    host: Host, engines: _Engines, run: RunFacts, step: int, directory: Path | None, *, stubborn: bool = False
) -> EvalResult:
    produce = Host([stand_in("producer", OneTurn, run)]).one("produce")
    plugin = host.plugin("eval")

    def sampler(own: Any, one: EvalSet) -> GroupSampler:
        made = make_sampler(own, run)
        made.group_size, made.params = one.samples_per_prompt, one.params
        return made

    runs = RunEvalSets(SETS, engines, produce=produce, make_sampler=sampler, max_concurrent_samples=8)
    sets: Any = runs if blocks(plugin) else _Sets(runs, _own_engines(host, engines.fault, stubborn), engines)
    with _snapshot() as complete:
        if directory is None and getattr(plugin, "needs_snapshot", EvalPlugin.needs_snapshot):
            directory = complete
        checkpoint = Checkpoint(step, step, directory)
        result: EvalResult = await host.one("evaluate_checkpoint")(checkpoint=checkpoint, sets=sets)
        return result

"""The suite of producers: whole groups of the right size, every sample told once as it ends, and nothing left after a cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from asyncrl.authoring import Plugin, RunFacts
from asyncrl.errors import AsyncrlError
from asyncrl.host import Active
from asyncrl.rollout.engine import GenerateRequest
from asyncrl.rollout.pool import EnginePool
from asyncrl.samples import Completion, Group, Prompt, Sample, TokenIds
from asyncrl.simulation.clock import run_virtual
from asyncrl.simulation.engine import ScriptedEngine
from asyncrl.simulation.script import Fault, Plan
from asyncrl.testing.base import BaseSuite
from asyncrl.testing.groups import same_prompt
from asyncrl.testing.rules import broken, expect
from asyncrl.testing.runs import LIMIT, Script, cast, require_every_step, simulate_with_faults
from asyncrl.testing.sampling import make_prompt, make_sampler

FAULTS: tuple[Fault, ...] = ("", "error", "", "abort", "error")


@dataclass(frozen=True)
class Produced:
    """What became of one call of `produce`.

    Attributes:
        group: the answer.
        done: samples in the order in which they were told, with the virtual second.
        asked: contexts for which completions were asked.
        left: requests that the engine still had when the call was over.
    """

    group: Any
    done: list[tuple[Sample, float]]
    asked: list[TokenIds]
    left: int


class ProducerSuite(BaseSuite):
    """Contract of a producer: turn a prompt into a group of scored samples, through the sampler that it is handed."""

    slot = "producer"

    def test_a_group_has_group_size_samples_of_its_prompt(self) -> None:
        """For any group size, also while other groups are produced."""
        for size in (1, 2, 5):
            run = self.facts(group_size=size)
            for number, produced in enumerate(self._produce(self.make(run=run), run, _staggered, prompts=4)):
                group = produced.group
                expect(
                    isinstance(group, Group) and same_prompt(group.prompt, make_prompt(number)) and len(group.samples) == size,
                    promised=f"produce answers the Group of its own prompt with sampler.group_size = {size} samples",
                    happened=lambda group=group, number=number: (  # type: ignore[misc]
                        f"for prompt {number} it answered {_described(group)}"
                    ),
                    fix="return await sampler.group(prompt, one, done), and keep nothing of one call on self",
                )

    def test_its_samples_are_whole(self) -> None:
        """Token ids, log-probabilities and loss mask have one length, spans add up to it, and some of it is trained."""
        run = self.facts()
        for sample in self._samples(run, _staggered):
            length = len(sample.token_ids)
            expect(
                len(sample.logprobs) == length == len(sample.loss_mask) == sum(count for _, count in sample.spans),
                promised="token_ids, logprobs and loss_mask have the same length, and the spans' counts add up to it",
                happened=f"lengths are {length}, {len(sample.logprobs)}, {len(sample.loss_mask)}, spans are {sample.spans}",
                fix="take all of them from the Completion; tokens that the model did not generate get logprob 0, mask False, and a span",
            )
            dtypes = [str(array.dtype) for array in (sample.token_ids, sample.logprobs, sample.loss_mask)]
            expect(
                dtypes == ["int32", "float32", "bool"],
                promised="token_ids are int32, logprobs float32, loss_mask bool",
                happened=f"they are {', '.join(dtypes)}",
                fix="make arrays with the dtype said, such as np.zeros(n, np.float32)",
            )
            expect(
                not sample.usable or sample.loss_mask.any(),
                promised="a sample that can be trained on has a token that the model generated",
                happened="its loss_mask is False everywhere",
                fix="set loss_mask True where the token comes from a Completion (asyncrl.full_mask for all)",
            )

    def test_its_samples_are_scored(self) -> None:
        """Every usable sample has the task's reward."""
        run = self.facts()
        for sample in self._samples(run, _staggered):
            expect(
                sample.reward == 0.5,
                promised="every finished sample is scored by the task",
                happened=f"one has the reward {sample.reward} where the task gives 0.5",
                fix="return await sampler.score(prompt, sample) for each",
            )

    def test_every_sample_is_told_once(self) -> None:
        """`done(sample)` is called once for each sample, those that failed too."""
        run = self.facts(max_retries=1)
        for script in (_staggered, _some_fail):
            for produced in self._produce(self.make(run=run), run, script, prompts=3):
                expect(
                    len(produced.done) == run.group_size,
                    promised="done(sample) is called once for each of the group's samples, whether it succeeded or not",
                    happened=f"it was called {len(produced.done)} times for {run.group_size} samples",
                    fix="leave the calls to sampler.group, or call done exactly once in every way that a sample can end",
                )

    def test_a_sample_is_told_as_it_ends(self) -> None:
        """`done` is not kept for the end of the group: it frees the sample's slot."""
        run = self.facts()
        produced = self._produce(self.make(run=run), run, _staggered, prompts=1)[0]
        times = [second for _, second in produced.done]
        expect(
            len(set(times)) == len(times) or len(times) < 2,
            promised="done(sample) is called when that sample ends, so that its slot is free while others go on",
            happened=f"samples that ended at different times were told at {', '.join(f'{second:g} s' for second in times)}",
            fix="call done where one sample ends, not after the whole group",
        )

    def test_a_cancelled_call_leaves_nothing(self) -> None:
        """Cancelled in the middle, it ends at once and takes its requests with it."""
        run = self.facts()

        async def main() -> tuple[bool, bool, int]:
            engine = ScriptedEngine(script=lambda request, number: Plan(tokens=10_000))
            sampler = make_sampler(EnginePool([engine], health_interval=0), run)
            call = asyncio.ensure_future(
                self.host(active).one("produce")(prompt=make_prompt(0), sampler=sampler, done=lambda sample: None)
            )
            await asyncio.sleep(5.0)
            call.cancel()
            await asyncio.wait([call], timeout=30.0)
            ended, cancelled = call.done(), call.cancelled()
            await asyncio.sleep(1.0)
            return ended, cancelled, engine.in_flight

        active = self.make(run=run)
        ended, cancelled, left = self._virtually(main())
        expect(
            ended and cancelled and not left,
            promised="a call that is cancelled ends with CancelledError, and so do its requests",
            happened=f"30 s later it had {'ended' if ended else 'not ended'}{'' if cancelled else ', not by CancelledError'}, "
            f"and {left} requests were still in flight",
            fix="never swallow asyncio.CancelledError, and await or cancel every task that you start; sampler.group does both",
        )

    def test_a_prompt_that_is_tried_again_is_pristine(self) -> None:
        """Producing changes nothing in the prompt, and a second call asks for the same as the first."""
        run, active = self.facts(), self.make()
        first, second = (self._produce(active, run, _staggered, prompts=1)[0] for _ in range(2))
        asked = [[context.tolist() for context in produced.asked] for produced in (first, second)]
        expect(
            asked[0] == asked[1] and all(same_prompt(one.group.prompt, make_prompt(0)) for one in (first, second)),
            promised="a prompt that is issued again is produced like one that was never issued",
            happened=lambda: f"first it asked to continue {asked[0][:3]}, then {asked[1][:3]}",
            fix="copy before you append to a prompt's tokens or data, and keep nothing by prompt on self",
        )

    def test_a_run_with_faults_balances_its_books(self) -> None:
        """A whole run under the virtual clock, with engines that die and hang, and prompts that are issued again."""
        run = self.facts(steps=8, max_concurrent_samples=24)
        require_every_step(
            lambda: cast(self.make(run=run), run),
            run,
            seeds=2,
            promised="a run with this producer trains every step, whatever happens to engines",
            fix="see what the message names",
        )

    @classmethod
    def exercise(cls, options: Mapping[str, Any]) -> list[Plugin]:
        """Produce groups, some of whose requests fail, and run it with faults."""
        run = cls.facts(steps=8, max_concurrent_samples=24, max_retries=1)
        alone, running = cls.make(options, run), cls.make(options, run)
        suite = cls()
        for script in (_staggered, _some_fail):
            suite._produce(alone, run, script, prompts=4)
        try:
            simulate_with_faults(cast(running, run), run)
        except AsyncrlError as error:
            pytest.skip(f"test_a_run_with_faults_balances_its_books fails: {error}")
        return [alone.plugin, running.plugin]

    def _samples(self, run: RunFacts, script: Script) -> list[Sample]:
        groups = [produced.group for produced in self._produce(self.make(run=run), run, script, prompts=3)]
        if not all(isinstance(group, Group) for group in groups):
            pytest.skip("test_a_group_has_group_size_samples_of_its_prompt fails")
        return [sample for group in groups for sample in group.samples]

    def _produce(self, active: Active, run: RunFacts, script: Script, *, prompts: int) -> list[Produced]:
        """Produce the groups of prompts 0, 1, … at once."""

        async def main() -> list[Produced]:
            engine = _Listening(script=script)
            sampler = make_sampler(EnginePool([engine], max_attempts=2, health_interval=0), run, reward=0.5)
            produce = self.host(active).one("produce")

            async def one(prompt: Prompt) -> Produced:
                told: list[tuple[Sample, float]] = []
                time = asyncio.get_running_loop().time
                group = await produce(prompt=prompt, sampler=sampler, done=lambda sample: told.append((sample, time())))
                return Produced(group, told, engine.asked.get(prompt.prompt_id, []), engine.in_flight)

            return await asyncio.gather(*(one(make_prompt(number)) for number in range(prompts)))

        produced: list[Produced] = self._virtually(main())
        return produced

    def _virtually(self, coroutine: Any) -> Any:
        try:
            return run_virtual(coroutine, limit=LIMIT)
        except AsyncrlError as error:
            broken(
                promised="produce ends, with a group, as soon as the engine has answered",
                happened=f"it ended with {type(error).__name__}: {error}",
                fix="see what the message names",
            )


class _Listening(ScriptedEngine):
    """Remembers for each prompt which contexts it was asked to continue."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.asked: dict[int, list[TokenIds]] = {}

    async def generate(self, request: GenerateRequest) -> Completion:
        self.asked.setdefault(request.affinity, []).append(request.token_ids.copy())
        return await super().generate(request)


def _staggered(request: GenerateRequest, number: int) -> Plan:
    """No two samples end at the same time."""
    return Plan(tokens=3 + number)


def _some_fail(request: GenerateRequest, number: int) -> Plan:
    return Plan(tokens=3 + number, fault=FAULTS[number % 5], fault_after=1)


def _described(group: object) -> str:
    if not isinstance(group, Group):
        return repr(group)
    return f"a group of prompt {group.prompt_id} with {len(group.samples)} samples"

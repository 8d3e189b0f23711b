"""Which sets are evaluated, and what one bad prompt costs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from asyncrl.authoring import Plugin, PluginOptions, RunFacts
from asyncrl.errors import BooksError, EnginesLost, EvalSkip, OptionError, PluginFailed, RequestFailed
from asyncrl.evaluation.records import EvalResult, EvalSet
from asyncrl.evaluation.sets import RunEvalSets, chosen_sets
from asyncrl.hookspecs import hookimpl
from asyncrl.host import Host
from asyncrl.rollout.engine import Generates
from asyncrl.rollout.pool import EnginePool
from asyncrl.samples import Group, Prompt, SamplingParams, Score
from asyncrl.simulation.engine import ScriptedEngine
from asyncrl.simulation.script import Plan
from asyncrl.testing.fakes import OneTurn, stand_in
from asyncrl.testing.sampling import make_prompt, make_sampler

FACTS = RunFacts(batch_size=2, group_size=2, max_concurrent_samples=8, steps=1, max_retries=0)
PARAMS = SamplingParams(8)


def one_set(name: str, prompts: int = 4, samples: int = 2) -> EvalSet:
    return EvalSet(name, tuple(make_prompt(number) for number in range(prompts)), PARAMS, samples)


class Sets(Plugin):
    """A task of eval sets and nothing else."""

    answer: Any = ()

    @hookimpl
    def eval_sets(self) -> Any:
        return self.answer

    @hookimpl
    def task_open(self, model: Any) -> None: ...

    @hookimpl
    def train_prompt(self, position: int) -> Prompt:
        return make_prompt(position)

    @hookimpl
    async def score_sample(self, prompt: Prompt, sample: Any) -> Score:
        return Score(0.0)


def host(answer: Any) -> Host:
    return Host([stand_in("task", type("Sets", (Sets,), {"answer": answer}), FACTS)])


class Troubled(OneTurn):
    """Raises for some prompts, and for the others makes their groups."""

    def __init__(self, options: PluginOptions, run: RunFacts) -> None:
        super().__init__(options, run)
        self.faults: dict[int, BaseException] = {}
        self.answers: dict[int, Any] = {}

    @hookimpl
    async def produce(self, prompt: Prompt, sampler: Any, done: Any) -> Group:
        if prompt.prompt_id in self.faults:
            raise self.faults[prompt.prompt_id]
        group = await super().produce(prompt, sampler, done)
        return self.answers.get(prompt.prompt_id, group)


def run(
    sets: Sequence[EvalSet], *, faults: dict[int, BaseException] | None = None, answers: dict[int, Any] | None = None
) -> EvalResult:
    async def main() -> EvalResult:
        active = stand_in("producer", Troubled, FACTS)
        active.plugin.faults, active.plugin.answers = faults or {}, answers or {}  # type: ignore[attr-defined]
        engine = ScriptedEngine(script=lambda request, number: Plan(tokens=4, per_token=0.0))

        def sampler(engines: Generates, one: EvalSet) -> Any:
            made = make_sampler(engines, FACTS)
            made.group_size, made.params = one.samples_per_prompt, one.params
            return made

        own = RunEvalSets(
            sets,
            EnginePool([engine], health_interval=0),
            produce=Host([active]).one("produce"),
            make_sampler=sampler,
            max_concurrent_samples=8,
            shown_samples=4,
        )
        before = asyncio.all_tasks()
        try:
            return await own.run(own.rollout_engines)
        finally:
            assert asyncio.all_tasks() == before

    return asyncio.run(main())


def test_without_a_choice_every_set_is_evaluated_and_with_one_those_in_the_tasks_order() -> None:
    task = host((one_set("a"), one_set("b"), one_set("c")))
    assert [one.name for one in chosen_sets(task, (), needed=True)] == ["a", "b", "c"]
    assert [one.name for one in chosen_sets(task, ("c", "a", "c"), needed=True)] == ["a", "c"]


def test_an_unknown_set_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(
        OptionError, match=r"eval_sets: .* has no eval set 'held-uot' \(did you mean held-out\? it has held-out, b\)"
    ):
        chosen_sets(host((one_set("held-out"), one_set("b"))), ("b", "held-uot"), needed=True)
    with pytest.raises(OptionError, match=r"no eval set 'x' \(it has none\)"):
        chosen_sets(host(()), ("x",), needed=False)


def test_a_run_that_evaluates_needs_a_set_and_one_that_does_not_never_asks() -> None:
    with pytest.raises(OptionError, match="has no eval sets"):
        chosen_sets(host(()), (), needed=True)
    assert chosen_sets(host("not even a tuple"), (), needed=False) == ()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("held-out", "right is a tuple of EvalSet"),
        ((one_set("a"), one_set("a")), "two eval sets with the name 'a'"),
        ((one_set("a", prompts=0),), "has 0 prompts"),
        ((one_set("a", samples=0),), "with 0 samples each"),
    ],
)
def test_sets_that_can_not_be_are_the_tasks_fault(answer: Any, message: str) -> None:
    with pytest.raises(PluginFailed, match=message):
        chosen_sets(host(answer), (), needed=True)


def test_each_set_has_its_own_samples_per_prompt() -> None:
    result = run([one_set("one", samples=1), one_set("many", prompts=3, samples=4)])
    assert {name: (one.num_prompts, one.num_samples) for name, one in result.sets.items()} == {"one": (4, 4), "many": (3, 12)}
    assert {name: list(one.pass_at) for name, one in result.sets.items()} == {"one": [1], "many": [1, 2, 4]}


@pytest.mark.parametrize("fault", [ValueError("no such tool"), RequestFailed("it gave up"), asyncio.CancelledError()], ids=repr)
def test_a_prompt_whose_producer_raised_counts_as_failed_with_its_reason(fault: BaseException) -> None:
    result = run([one_set("held-out")], faults={1: fault}).sets["held-out"]
    assert (result.num_samples, result.failed, result.mean_reward, result.pass_at[1]) == (8, 0.25, 0.75, 0.75)
    assert result.samples[1].status.startswith("producer_error: ")


@pytest.mark.parametrize("answer", [None, Group(make_prompt(0), ()), Group(make_prompt(1), ())], ids=["none", "another", "empty"])
def test_an_answer_that_is_not_the_prompts_group_counts_as_failed(answer: Any) -> None:
    """A producer that forgets samples does not get a better mean for it."""
    assert run([one_set("held-out")], answers={1: answer}).sets["held-out"].failed == 0.25


def test_a_producer_that_fails_on_every_prompt_has_no_result() -> None:
    with pytest.raises(PluginFailed, match="no such tool"):
        run([one_set("a"), one_set("b")], faults={number: ValueError("no such tool") for number in range(4)})


def test_a_set_that_fails_whole_leaves_the_others_their_result() -> None:
    result = run([one_set("a", prompts=1), one_set("b", prompts=4)], faults={0: ValueError("no such tool")})
    assert (result.sets["a"].failed, result.sets["b"].failed) == (1.0, 0.25)


def test_without_engines_the_point_is_skipped_and_broken_books_pass() -> None:
    with pytest.raises(EvalSkip, match="unhealthy: no engine"):
        run([one_set("a")], faults={2: EnginesLost("no engine is alive")})
    with pytest.raises(BooksError):
        run([one_set("a")], faults={2: BooksError("unbalanced")})
    with pytest.raises(EvalSkip, match="pin_violation"):
        run([one_set("a")], faults={2: EvalSkip("pin_violation")})


def test_the_prompt_keeps_its_tokens_in_what_people_read() -> None:
    shown = run([one_set("a")]).sets["a"].samples
    assert [one.prompt.split()[0] for one in shown] == [str(np.int32(number)) for number in range(4)]

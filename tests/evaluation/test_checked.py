"""What a backend may answer, and what is its fault."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from asyncrl.authoring import EvalPlugin, RunFacts
from asyncrl.errors import EvalSkip, PluginFailed
from asyncrl.evaluation.checked import ask_backend, checked_sets
from asyncrl.evaluation.records import Checkpoint, EvalResult, EvalSet, EvalSets, SetResult
from asyncrl.hookspecs import hookimpl
from asyncrl.host import Host
from asyncrl.samples import SamplingParams
from asyncrl.testing.fakes import stand_in
from asyncrl.testing.sampling import make_prompt

FACTS = RunFacts(batch_size=2, group_size=2, max_concurrent_samples=4, steps=1)
RESULT = SetResult(0.5, 4, 8, 0.0, 0.0, 5.0, 2.0, 0.0)


class Asked:
    """Two sets that a backend is asked for."""

    sets = tuple(EvalSet(name, (make_prompt(0),), SamplingParams(8)) for name in ("easy", "hard"))


def answer(what: Any) -> EvalResult:
    """Ask a backend that returns `what`, or raises it."""

    class Backend(EvalPlugin):
        @hookimpl
        async def evaluate_checkpoint(self, checkpoint: Checkpoint, sets: EvalSets) -> EvalResult:
            if isinstance(what, BaseException):
                raise what
            result: EvalResult = what
            return result

    host = Host([stand_in("eval", Backend, FACTS)])
    sets: Any = Asked()
    return asyncio.run(ask_backend(host, Checkpoint(2, 2, None), sets))


def test_a_result_for_every_set_is_right() -> None:
    result = EvalResult({"easy": RESULT, "hard": RESULT})
    assert answer(result) is result


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ((), "without the set 'easy'"),
        (("easy",), "without the set 'hard'"),
        (("easy", "hard", "own"), "with a set that it was not asked for: 'own'"),
    ],
)
def test_a_set_too_few_or_too_many_is_the_backends_fault(names: tuple[str, ...], told: str) -> None:
    with pytest.raises(PluginFailed, match=f"Backend.*{told}"):
        answer(EvalResult({name: RESULT for name in names}))


@pytest.mark.parametrize("what", [None, {"easy": RESULT}, EvalResult([RESULT]), EvalResult({"easy": 1})])  # type: ignore[arg-type, dict-item]
def test_another_kind_of_answer_says_what_is_wanted(what: Any) -> None:
    with pytest.raises(TypeError, match="it returned .* wants"):
        answer(what)


@pytest.mark.parametrize(
    ("key", "value"), [("mean_reward", float("nan")), ("mean_length", float("inf")), ("failed", -1.0), ("truncated", 2.0)]
)
def test_numbers_that_can_not_be_are_refused(key: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{key} of set 'easy'"):
        checked_sets(EvalResult({"easy": replace(RESULT, **{key: value})}))


@pytest.mark.parametrize("by_k", [{"one": 0.5}, [0.5]])
def test_pass_at_is_by_k(by_k: Any) -> None:
    with pytest.raises(TypeError, match="pass_at of set 'easy'"):
        checked_sets(EvalResult({"easy": replace(RESULT, pass_at=by_k)}))


@pytest.mark.parametrize("cause", [asyncio.CancelledError(), KeyboardInterrupt(), SystemExit(3), ValueError("bad")])
def test_whatever_it_raises_costs_the_point_and_not_its_process(cause: BaseException) -> None:
    with pytest.raises(PluginFailed, match=type(cause).__name__):
        answer(cause)


def test_its_skip_passes_as_it_is() -> None:
    with pytest.raises(EvalSkip, match="^refused: too large$"):
        answer(EvalSkip("refused: too large"))

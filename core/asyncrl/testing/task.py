"""The suite of tasks: a stream of prompts that is a function of the position, a reward for whatever a model writes, eval sets that stay."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from asyncrl.authoring import Plugin
from asyncrl.errors import AsyncrlError, OptionError
from asyncrl.evaluation.records import EvalSet
from asyncrl.host import Host
from asyncrl.samples import Prompt, SamplingParams, Score
from asyncrl.testing.groups import same_prompt
from asyncrl.testing.hostile import completions
from asyncrl.testing.models import cache_dir, vocab_size
from asyncrl.testing.rules import broken, expect
from asyncrl.testing.task_opened import LONGEST, NotOpen, OpenedTask, TooLong

POSITIONS = (*range(12), 999, 10**6, 10**9)
PROMPTS = "test_its_prompts_are_prompts"


class TaskSuite(OpenedTask):
    """Contract of a task: prompts by position, a reward for each sample, held-out sets.

    The rules open it with its own model, if `task_model` makes one, else with a tokenizer of single ASCII characters. A subclass may also
    set:

    Attributes:
        model: a Hugging Face directory to open it with instead; only its tokenizer and config are needed.
        scoring_seconds: in which a score must have come, whatever the completion.
        leaving_seconds: in which its processes must be gone after task_close.
        repeatable: whether the same completion gets the same reward each time; False for a judge that draws.
    """

    repeatable: ClassVar[bool] = True

    def test_it_opens_and_closes(self) -> None:
        """task_open with a good model, and task_close after it, raise nothing."""

        async def nothing(host: Host) -> None:
            return None

        try:
            self.alive(nothing, self.options)
        except (NotOpen, TooLong) as error:
            broken(
                promised="a task opens with a good model and good options, and closes",
                happened=str(error),
                fix="see what the message names; if the task wants another model, set `model` in the suite",
            )

    def test_its_prompts_are_prompts(self) -> None:
        """At every position of an endless stream: a Prompt with this id, int32 token ids of the model, and JSON data."""
        size = vocab_size(self.model_directory())
        for position, prompt in zip(POSITIONS, self.opened(lambda host: _prompts(host, POSITIONS)), strict=True):
            expect(
                isinstance(prompt, Prompt) and prompt.prompt_id == position,
                promised=f"train_prompt({position}) answers a Prompt with prompt_id {position}; the stream has no end",
                happened=f"it answered {prompt!r}",
                fix="return Prompt(position, token_ids, data); begin anew when the data are through",
            )
            ids = prompt.token_ids
            expect(
                ids.dtype == np.int32 and ids.ndim == 1 and len(ids) > 0 and ids.min() >= 0 and ids.max() < size,
                promised=f"token_ids is int32[n] with n >= 1, of the model's {size} tokens",
                happened=lambda ids=ids: f"at position {position} it is {ids.dtype}{list(ids.shape)}: {ids[:8].tolist()}",  # type: ignore[misc] # noqa: B023
                fix="np.array(ids, np.int32), by the tokenizer of the model that task_open was given",
            )
            expect(
                _is_json(dict(prompt.data)),
                promised="a prompt's data are JSON: numbers, texts, lists, tables",
                happened=f"at position {position} they are {prompt.data!r}",
                fix="keep in data only what JSON can say, and rebuild the rest from it",
            )

    def test_a_prompt_depends_on_its_position_alone(self) -> None:
        """Asked in another order, again, or of another object (as after a restart), it is the same prompt."""

        def shuffled(host: Host) -> list[Any]:
            backwards = dict(zip(reversed(POSITIONS), _prompts(host, reversed(POSITIONS)), strict=True))
            return [backwards[position] for position in POSITIONS]

        first = self.opened(lambda host: _prompts(host, POSITIONS), rule=PROMPTS)
        for what, again in (
            ("in another order", self.opened(shuffled, rule=PROMPTS)),
            ("again", self.opened(_twice, rule=PROMPTS)),
        ):
            for position, one, other in zip(POSITIONS, first, again, strict=True):
                expect(
                    same_prompt(one, other),
                    promised="train_prompt is a pure function of options and position, so that a resumed run trains what it would have",
                    happened=f"asked {what} for position {position}, it gave {_shown(other)}, before {_shown(one)}",
                    fix="draw by random.Random(f'{seed} {position}'), never from a generator that goes on from call to call",
                )

    def test_any_completion_gets_a_finite_reward(self) -> None:
        """Nothing, endless repetition, code, broken and huge expressions: a Score in bounded time, and no exception."""
        try:
            scores = self.scored(1).scores
        except TooLong as error:
            broken(
                promised="no score blocks the event loop for long",
                happened=str(error),
                fix="score what can take long in a process that can be killed: asyncrl.ScoringPool does that",
            )
        for what, answer in scores:
            expect(
                not isinstance(answer, Exception),
                promised="whatever a model writes gets a score",
                happened=f"scoring {what} raised {type(answer).__name__}: {answer}",
                fix="score what can't be read as 0, with Score(0.0, failure='unreadable') if it shall be counted",
            )
            expect(
                isinstance(answer, Score) and math.isfinite(answer.reward),
                promised="score_sample answers a Score with a finite reward",
                happened=f"for {what} it answered {answer!r}",
                fix="return Score(number); a nan would make the whole batch nan",
            )

    def test_the_same_completion_gets_the_same_reward(self) -> None:
        """A reward is a function of prompt and completion."""
        if not self.repeatable:
            pytest.skip("the suite says that it is not repeatable")
        for (what, one), (_, other) in zip(self.scored_well(1).scores, self.scored_well(2).scores, strict=True):
            expect(
                not isinstance(one, Score) or one == other,
                promised="the same completion of the same prompt gets the same reward",
                happened=f"for {what} it was {one}, then {other}",
                fix="remember nothing between two calls; or set repeatable = False in the suite",
            )

    def test_its_eval_sets_stay_the_same(self) -> None:
        """Each has a name of its own, prompts that count from 0 and sampling parameters, and is the same after a restart."""
        first, second = (self.opened(lambda host: host.one("eval_sets")()) for _ in range(2))
        expect(
            isinstance(first, tuple)
            and all(isinstance(one, EvalSet) and isinstance(one.params, SamplingParams) for one in first),
            promised="eval_sets answers a tuple of EvalSet, possibly an empty one",
            happened=f"it answered {first!r}",
            fix="return (EvalSet(name, prompts, SamplingParams(…)),), or ()",
        )
        names = [one.name for one in first]
        expect(
            len(set(names)) == len(names) and all(name and set(name) <= _WORD for name in names),
            promised="each set has a name of its own: letters, digits, '_', '-' and '.', because it becomes part of metric names",
            happened=f"the names are {names}",
            fix="name each set by one word",
        )
        for one in first:
            expect(
                one.samples_per_prompt >= 1
                and (one.samples_per_prompt == 1 or one.params.temperature > 0)
                and math.isfinite(one.pass_reward),
                promised="a set has at least one sample of each prompt, a temperature if it has several, and a number as pass_reward",
                happened=f"{one.name!r} has {one.samples_per_prompt} samples of each prompt at temperature {one.params.temperature:g}, "
                f"which pass with a reward of {one.pass_reward}",
                fix="give EvalSet samples_per_prompt and params that fit together: greedy samples of one prompt are all alike",
            )
        for one, other in zip(first, second, strict=True):
            ids = [prompt.prompt_id for prompt in one.prompts]
            expect(
                ids == list(range(len(ids))) and ids,
                promised="the prompts of a set count from 0",
                happened=f"those of {one.name!r} have the ids {ids[:8]}",
                fix="number them by their place in the set",
            )
            expect(
                all(same_prompt(*pair) for pair in zip(one.prompts, other.prompts, strict=True)) and one.params == other.params,
                promised="a set holds the same prompts at every point, also after a restart",
                happened=f"opened again, {one.name!r} holds others",
                fix="choose them by options and seed alone",
            )

    def test_closing_it_leaves_no_process(self) -> None:
        """After task_close, nothing that opening and scoring started is running."""
        left = self.scored_well(1).left
        expect(
            not left,
            promised="task_close ends whatever the task has started",
            happened=f"still running: {'; '.join(left)}",
            fix="close scoring pools and servers in task_close, and wait for them with a deadline",
        )

    def test_its_own_model_is_a_model(self) -> None:
        """If it has one: a Hugging Face directory, the same one each time. If not, it says so with an `OptionError`."""
        host = self.host()
        if not host.has("task_model"):
            pytest.skip("it has no task_model")
        try:
            first, second = host.one("task_model")(cache_dir=cache_dir()), host.one("task_model")(cache_dir=cache_dir())
        except OptionError:
            return
        except AsyncrlError as error:
            broken(
                promised="a task without a model of its own raises OptionError in task_model",
                happened=f"it raised {error}",
                fix="raise asyncrl.OptionError('… has no model of its own', origin='model')",
            )
        expect(
            isinstance(first, Path) and first == second and (first / "config.json").is_file(),
            promised="task_model answers the path of a Hugging Face directory",
            happened=f"it answered {first!r}, then {second!r}",
            fix="make it below cache_dir once, and return its Path",
        )

    @classmethod
    def exercise(cls, options: Mapping[str, Any]) -> list[Plugin]:
        """Open it, ask for prompts and eval sets, score what a model may write, close it."""
        used = []

        async def whole(host: Host) -> None:
            used.append(host.actives[0].plugin)
            prompts = _prompts(host, range(4))
            host.one("eval_sets")()
            for prompt in prompts:
                for _, sample in completions(cls.model_directory(), LONGEST):
                    try:
                        await host.one("score_sample")(prompt=prompt, sample=sample)
                    except AsyncrlError:
                        continue

        try:
            cls.alive(whole, options)
        except (NotOpen, TooLong, AsyncrlError) as error:
            pytest.skip(f"another rule fails: {error}")
        return used


_WORD = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")


def _prompts(host: Host, positions: Iterable[int]) -> list[Any]:
    return [host.one("train_prompt")(position=position) for position in positions]


def _twice(host: Host) -> list[Any]:
    _prompts(host, POSITIONS)
    return _prompts(host, POSITIONS)


def _is_json(data: object) -> bool:
    try:
        return bool(json.loads(json.dumps(data)) == data)
    except (TypeError, ValueError):
        return False


def _shown(prompt: object) -> str:
    return f"{prompt.token_ids.tolist()} {dict(prompt.data)}" if isinstance(prompt, Prompt) else repr(prompt)

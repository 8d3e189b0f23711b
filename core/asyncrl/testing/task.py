"""The suite of tasks: a stream of prompts that is a function of the position, a reward for whatever a model writes, eval sets that stay."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import queue
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import pytest

from asyncrl.authoring import Plugin
from asyncrl.errors import AsyncrlError, OptionError
from asyncrl.evaluation.records import EvalSet
from asyncrl.host import Host
from asyncrl.samples import Prompt, SamplingParams, Score
from asyncrl.testing.base import BaseSuite
from asyncrl.testing.groups import same_prompt
from asyncrl.testing.hostile import completions
from asyncrl.testing.leftovers import children, left_since
from asyncrl.testing.models import cache_dir, character_model, vocab_size
from asyncrl.testing.rules import broken, expect

POSITIONS = (*range(12), 999, 10**6, 10**9)
LONGEST = 200
T = TypeVar("T")


@dataclass(frozen=True)
class Scored:
    """What each hostile completion is, with its score or what was raised; and what still ran after the task was closed."""

    scores: list[tuple[str, Any]]
    left: list[str]


class TaskSuite(BaseSuite):
    """Contract of a task: prompts by position, a reward for each sample, held-out sets.

    The rules open it with its own model, if `task_model` makes one, else with a tokenizer of single ASCII characters. A subclass may also
    set:

    Attributes:
        model: a Hugging Face directory to open it with instead; only its tokenizer and config are needed.
        scoring_seconds: in which a score must have come, whatever the completion.
        leaving_seconds: in which its processes must be gone after task_close.
        repeatable: whether the same completion gets the same reward each time; False for a judge that draws.
    """

    slot = "task"
    model: ClassVar[str | Path] = ""
    scoring_seconds: ClassVar[float] = 60.0
    leaving_seconds: ClassVar[float] = 15.0
    repeatable: ClassVar[bool] = True

    def test_its_prompts_are_prompts(self) -> None:
        """At every position of an endless stream: a Prompt with this id, int32 token ids of the model, and JSON data."""
        size = vocab_size(self.model_directory())
        for position, prompt in zip(POSITIONS, self._opened(lambda host: _prompts(host, POSITIONS)), strict=True):
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

        first = self._opened(lambda host: _prompts(host, POSITIONS))
        for what, again in (("in another order", self._opened(shuffled)), ("again", self._opened(_twice))):
            for position, one, other in zip(POSITIONS, first, again, strict=True):
                expect(
                    same_prompt(one, other),
                    promised="train_prompt is a pure function of options and position, so that a resumed run trains what it would have",
                    happened=f"asked {what} for position {position}, it gave {_shown(other)}, before {_shown(one)}",
                    fix="draw by random.Random(f'{seed} {position}'), never from a generator that goes on from call to call",
                )

    def test_any_completion_gets_a_finite_reward(self) -> None:
        """Nothing, endless repetition, code, broken and huge expressions: a Score in bounded time, and no exception."""
        for what, answer in self._scored(1).scores:
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
        for (what, one), (_, other) in zip(self._scored(1).scores, self._scored(2).scores, strict=True):
            expect(
                not isinstance(one, Score) or one == other,
                promised="the same completion of the same prompt gets the same reward",
                happened=f"for {what} it was {one}, then {other}",
                fix="remember nothing between two calls; or set repeatable = False in the suite",
            )

    def test_its_eval_sets_stay_the_same(self) -> None:
        """Each has a name of its own, prompts that count from 0 and sampling parameters, and is the same after a restart."""
        first, second = (self._opened(lambda host: host.one("eval_sets")()) for _ in range(2))
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
        left = self._scored(1).left
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

        cls._in_time(lambda: cls._alive(whole, options))
        return used

    # For the rules ----------------------------------------------------------------------------------------------------------

    @classmethod
    def asked_with(cls) -> dict[str, Any]:
        return {"model": str(cls.model_directory())}

    @classmethod
    def model_directory(cls) -> Path:
        """Return the model that the task is opened with."""
        if cls.model:
            return Path(cls.model)
        if cls not in _MODELS:
            _MODELS[cls] = _own_model(cls.host())
        return _MODELS[cls]

    def _opened(self, ask: Callable[[Host], T]) -> T:
        """Open a new object of it, ask, and close it."""

        async def asked(host: Host) -> T:
            return ask(host)

        return self._in_time(lambda: self._alive(asked, self.options))

    def _scored(self, time: int) -> Scored:
        """The scores of hostile completions by an object of its own, the first or the second time."""
        key = (type(self), time)
        if key not in _SCORED:
            before = children()
            scores = self._in_time(lambda: self._alive(self._score_all, self.options))
            _SCORED[key] = Scored(scores, list(left_since(before, self.leaving_seconds).values()))
        return _SCORED[key]

    async def _score_all(self, host: Host) -> list[tuple[str, Any]]:
        prompt, score = host.one("train_prompt")(position=0), host.one("score_sample")
        answers: list[tuple[str, Any]] = []
        for what, sample in completions(self.model_directory(), LONGEST):
            try:
                answers.append((what, await asyncio.wait_for(score(prompt=prompt, sample=sample), self.scoring_seconds)))
            except TimeoutError:
                answers.append((what, TimeoutError(f"no score within {self.scoring_seconds:g} s")))
            except AsyncrlError as error:
                answers.append((what, error))
        return answers

    @classmethod
    def _alive(cls, use: Callable[[Host], Awaitable[T]], options: Mapping[str, Any]) -> T:
        async def main() -> T:
            host = cls.host(cls.make(options))
            host.one("task_open")(model=cls.model_directory())
            try:
                return await use(host)
            finally:
                if host.has("task_close"):
                    await host.one("task_close")()

        return asyncio.run(main())

    @classmethod
    def _in_time(cls, work: Callable[[], T]) -> T:
        """Do work in a thread, which can be given up when it blocks for ever."""
        answers: queue.Queue[tuple[bool, Any]] = queue.Queue()

        def do() -> None:
            try:
                answers.put((True, work()))
            except BaseException as error:
                answers.put((False, error))

        threading.Thread(target=do, daemon=True, name="the suite's use of a task").start()
        limit = 10 * cls.scoring_seconds
        try:
            fine, answer = answers.get(timeout=limit)
        except queue.Empty:
            broken(
                promised="no hook of a task blocks the event loop for long",
                happened=f"opening it, asking it and closing it took more than {limit:g} s",
                fix="score what can take long in a process that can be killed: asyncrl.ScoringPool does that",
            )
        if fine:
            result: T = answer
            return result
        if isinstance(answer, AsyncrlError):
            broken(
                promised="task_open, train_prompt, eval_sets and task_close raise nothing with a good model and good options",
                happened=f"{type(answer).__name__}: {answer}",
                fix="see what the message names; if the task wants another model, set `model` in the suite",
            )
        raise answer


_SCORED: dict[tuple[type, int], Scored] = {}
_MODELS: dict[type, Path] = {}
_WORD = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")


def _own_model(host: Host) -> Path:
    """The model that a task makes, or the tokenizer of characters for one that makes none."""
    if host.has("task_model"):
        with contextlib.suppress(AsyncrlError):
            return Path(host.one("task_model")(cache_dir=cache_dir()))
    return character_model()


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

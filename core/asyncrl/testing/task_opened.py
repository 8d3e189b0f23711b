"""How the rules of tasks use one: opened with a model, in a thread that can be given up, and closed again."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest

from asyncrl.errors import AsyncrlError
from asyncrl.host import Host
from asyncrl.testing.base import BaseSuite
from asyncrl.testing.hostile import completions
from asyncrl.testing.leftovers import children, left_since
from asyncrl.testing.models import cache_dir, character_model
from asyncrl.testing.rules import broken

LONGEST = 200
"""Tokens of the longest completion that is scored."""
T = TypeVar("T")


class NotOpen(Exception):
    """`task_open` or `task_close` raised."""


class TooLong(Exception):
    """A hook has blocked the event loop for far longer than a score may take."""


@dataclass(frozen=True)
class Scored:
    """What each hostile completion is, with its score or what was raised; and what still ran after the task was closed."""

    scores: list[tuple[str, Any]]
    left: list[str]


class OpenedTask(BaseSuite):
    slot = "task"
    model: ClassVar[str | Path] = ""
    scoring_seconds: ClassVar[float] = 60.0
    leaving_seconds: ClassVar[float] = 15.0

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

    @classmethod
    def alive(cls, use: Callable[[Host], Awaitable[T]], options: Mapping[str, Any]) -> T:
        """Use a new object of the task, opened before and closed after it.

        Raises:
            NotOpen: it could not be opened, or not be closed.
            TooLong: a hook does not come back.
            AsyncrlError: what a hook raised meanwhile.
        """

        async def main() -> T:
            host = cls.host(cls.make(options))
            try:
                host.one("task_open")(model=cls.model_directory())
            except AsyncrlError as error:
                raise NotOpen(f"task_open raised {type(error).__name__}: {error}") from error
            try:
                return await use(host)
            finally:
                if host.has("task_close"):
                    try:
                        await host.one("task_close")()
                    except AsyncrlError as error:
                        raise NotOpen(f"task_close raised {type(error).__name__}: {error}") from error

        return _in_time(lambda: asyncio.run(main()), 10 * cls.scoring_seconds)

    def opened(self, ask: Callable[[Host], T], *, rule: str = "") -> T:
        """Ask an open task something.

        Args:
            rule: the rule that speaks of what the hooks raise, if it is not this one.
        """

        async def asked(host: Host) -> T:
            return ask(host)

        try:
            return self.alive(asked, self.options)
        except NotOpen:
            pytest.skip("test_it_opens_and_closes fails")
        except (AsyncrlError, TooLong) as error:
            if rule:
                pytest.skip(f"{rule} fails")
            broken(
                promised="train_prompt and eval_sets raise nothing, and come back at once",
                happened=f"{type(error).__name__}: {error}",
                fix="see what the message names; if the task wants another model, set `model` in the suite",
            )

    def scored(self, time: int) -> Scored:
        """Return the scores of hostile completions by an object of its own, the first or the second time.

        Raises:
            TooLong: it does not come back.
        """
        key = (type(self), time)
        if key not in _SCORED:
            before = children()
            try:
                scores = self.alive(self._score_all, self.options)
                _SCORED[key] = Scored(scores, list(left_since(before, self.leaving_seconds).values()))
            except NotOpen:
                pytest.skip("test_it_opens_and_closes fails")
            except TooLong as error:
                _SCORED[key] = error
            except AsyncrlError:
                pytest.skip("test_its_prompts_are_prompts fails")
        known = _SCORED[key]
        if isinstance(known, TooLong):
            raise known
        return known

    def scored_well(self, time: int) -> Scored:
        """Like `scored`; skips the test where a score does not come."""
        try:
            return self.scored(time)
        except TooLong:
            pytest.skip("test_any_completion_gets_a_finite_reward fails")

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


_SCORED: dict[tuple[type, int], Scored | TooLong] = {}
_MODELS: dict[type, Path] = {}


def _own_model(host: Host) -> Path:
    """The model that a task makes, or the tokenizer of characters for one that makes none."""
    if host.has("task_model"):
        with contextlib.suppress(AsyncrlError):
            return Path(host.one("task_model")(cache_dir=cache_dir()))
    return character_model()


def _in_time(work: Callable[[], T], limit: float) -> T:
    """Do work in a thread, which can be given up when it blocks for ever."""
    answers: queue.Queue[tuple[bool, Any]] = queue.Queue()

    def do() -> None:
        try:
            answers.put((True, work()))
        except BaseException as error:
            answers.put((False, error))

    threading.Thread(target=do, daemon=True, name="the suite's use of a task").start()
    try:
        fine, answer = answers.get(timeout=limit)
    except queue.Empty:
        raise TooLong(f"opening it, asking it and closing it took more than {limit:g} s") from None
    if not fine:
        raise answer
    result: T = answer
    return result

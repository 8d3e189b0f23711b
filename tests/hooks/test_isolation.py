"""What one plugin does wrong costs no other one its call: observers and loggers; and who is named when a hook fails."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
from asyncrl import KEEP, Group, Plugin, PluginOptions, Prompt, RunFacts, Sample, Score, Verdict, drop, hookimpl
from asyncrl.errors import PluginFailed, PluginLoadError
from asyncrl.host import Active, Host

RUN = RunFacts(batch_size=1, group_size=1, max_concurrent_samples=1, steps=1)
GROUP = Group(Prompt(3, np.zeros(1, np.int32)), ())


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Watcher(Plugin):
    def __init__(self, options: PluginOptions, run: RunFacts) -> None:
        super().__init__(options, run)
        self.seen: list[Any] = []

    @hookimpl
    def on_group_ended(self, prompt_id: int, fate: str) -> None:
        self.seen.append((prompt_id, fate))


class Exits(Plugin):
    raises: BaseException = SystemExit(3)

    @hookimpl
    def on_group_ended(self) -> None:
        raise self.raises


def failing(error: BaseException) -> type[Plugin]:
    return type("Failing", (Exits,), {"raises": error})


def host(*kinds: type[Plugin], slot: str = "observers") -> Host:
    return Host([Active(slot, f"{kind.__name__}-{i}", "dist", "1.0", kind(PluginOptions(), RUN)) for i, kind in enumerate(kinds)])


@pytest.mark.parametrize(
    "error", [KeyError("x"), SystemExit(3), asyncio.CancelledError(), Unspeakable()], ids=lambda error: type(error).__name__
)
def test_an_observer_that_fails_costs_the_others_nothing(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    """Field report 38."""
    one = host(Watcher, failing(error), Watcher)
    with caplog.at_level(logging.WARNING, "asyncrl"):
        for position in range(3):
            one.observe("on_group_ended", prompt_id=position, fate="trained", tokens=5)
    for index in (0, 2):
        assert one.actives[index].plugin.seen == [(0, "trained"), (1, "trained"), (2, "trained")]
    (delta,) = one.drain()
    assert delta == {"plugins/observer_failures": {"Failing-1": 3}}
    (warning,) = caplog.messages
    assert "observers plugin 'Failing-1' (dist 1.0) failed in on_group_ended (said once) at " in warning
    assert type(error).__name__ in warning
    assert "test_isolation.py:" in warning


def test_an_interrupt_is_the_users_and_passes_an_observer() -> None:
    with pytest.raises(KeyboardInterrupt):
        host(failing(KeyboardInterrupt())).observe("on_group_ended", prompt_id=0, fate="trained", tokens=0)


class Accepts(Plugin):
    @hookimpl
    def judge_group(self, group: Group) -> Verdict:
        return KEEP


class Refuses(Plugin):
    @hookimpl
    def judge_group(self) -> Verdict:
        return drop("no")


class Breaks(Plugin):
    @hookimpl
    def judge_group(self) -> Verdict:
        sys.exit(0)


def test_answers_of_many_come_with_their_plugins_in_the_order_of_selection() -> None:
    answers = host(Refuses, Accepts, Refuses, slot="filters").each("judge_group", group=GROUP)
    assert [(active.name, verdict.action) for active, verdict in answers] == [
        ("Refuses-0", "drop"),
        ("Accepts-1", "keep"),
        ("Refuses-2", "drop"),
    ]


def test_a_slot_hook_that_calls_sys_exit_fails_as_the_plugin_and_does_not_end_the_process() -> None:
    with pytest.raises(PluginFailed, match=r"filters plugin 'Breaks-1' \(dist 1.0\) failed in judge_group: SystemExit: 0"):
        host(Accepts, Breaks, slot="filters").each("judge_group", group=GROUP)


class Judges(Plugin):
    @hookimpl
    def judge_staleness(self, version: int) -> Verdict:
        return KEEP if version else drop(str(1 // version))


class WrapsBadly(Plugin):
    @hookimpl(wrapper=True)
    def judge_staleness(self, version: int) -> Generator[None, Verdict, Verdict]:
        verdict = yield
        return KEEP if version > 1 else drop(str(1 // (version - 1))) if verdict is KEEP else verdict


@pytest.mark.parametrize(("version", "name"), [(0, "Judges-0"), (1, "WrapsBadly-1")])
def test_a_wrapper_that_fails_is_named_and_not_what_it_wraps(version: int, name: str) -> None:
    judge = host(Judges, WrapsBadly, slot="staleness").one("judge_staleness")
    with pytest.raises(PluginFailed, match=rf"'{name}' \(dist 1\.0\) failed in judge_staleness: ZeroDivisionError"):
        judge(group=GROUP, version=version)
    assert judge(group=GROUP, version=2) is KEEP


class YieldsTwice(Plugin):
    @hookimpl(wrapper=True)
    def judge_staleness(self) -> Generator[None, Verdict, Verdict]:
        yield
        return (yield)


def test_a_fault_that_may_be_a_wrappers_names_it_too() -> None:
    wrapped = host(Judges, YieldsTwice, slot="staleness")
    who = r"staleness plugin 'Judges-0' \(dist 1\.0\), wrapped by staleness plugin 'YieldsTwice-1' \(dist 1\.0\)"
    with pytest.raises(PluginFailed, match=rf"{who} failed in judge_staleness: RuntimeError"):
        wrapped.one("judge_staleness")(group=GROUP, version=2)
    assert re.fullmatch(who, wrapped.owner("judge_staleness"))


class WrapsWhatNobodyHas(Plugin):
    @hookimpl(wrapper=True)
    def score_group(self) -> Generator[None, float, float]:
        return (yield)


def test_a_wrapper_around_an_optional_hook_does_not_implement_it() -> None:
    assert not host(WrapsWhatNobodyHas).has("score_group")
    with pytest.raises(PluginLoadError, match="hook score_group needs exactly one implementation, found: none"):
        host(WrapsWhatNobodyHas).one("score_group")


class Scores(Plugin):
    @hookimpl
    def score_group(self) -> float:
        return 1.0


def test_two_implementations_of_a_slot_hook_are_refused_when_they_are_registered() -> None:
    with pytest.raises(PluginLoadError, match="hook score_group needs exactly one implementation, found: .*Scores-0.*Scores-1"):
        host(Scores, Scores)


class AsyncTask(Plugin):
    @hookimpl
    async def score_sample(self, sample: Sample) -> Score:
        await asyncio.sleep(0)
        if sample is None:
            raise SystemExit(1)
        await asyncio.sleep(60)
        return Score(1.0)


async def test_an_async_hook_fails_as_the_plugin_and_can_be_cancelled() -> None:
    score = host(AsyncTask, slot="task").one("score_sample")
    with pytest.raises(PluginFailed, match="'AsyncTask-0' .*failed in score_sample: SystemExit: 1"):
        await score(prompt=None, sample=None)
    task = asyncio.ensure_future(score(prompt=None, sample=1))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


class Shortcut(Plugin):
    """Keeps a bound hook for itself, and has a property that may not be looked at yet."""

    def __init__(self, options: PluginOptions, run: RunFacts) -> None:
        super().__init__(options, run)
        self.judge = self.judge_staleness

    @property
    def opened(self) -> str:
        raise RuntimeError("looked at before it was opened")

    @hookimpl
    def judge_staleness(self) -> Verdict:
        return KEEP


def test_registering_looks_at_no_property_and_takes_only_methods_of_the_class() -> None:
    one = host(Shortcut, slot="staleness")
    assert one.one("judge_staleness")(group=GROUP, version=1) is KEEP

"""Calling the active plugins of a process: one, many, observers, and wrappers around them."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
from asyncrl import KEEP, Group, Plugin, PluginOptions, Prompt, RunFacts, Verdict, drop, hookimpl
from asyncrl.errors import PluginFailed, PluginLoadError, RequestFailed
from asyncrl.host import Active, Host

RUN = RunFacts(batch_size=1, group_size=1, max_concurrent_samples=1, steps=1)
GROUP = Group(Prompt(3, np.zeros(1, np.int32)), ())


class Odd(Plugin):
    @hookimpl
    def judge_staleness(self, group: Group, version: int) -> Verdict:
        if version < 0:
            raise KeyError("no such version")
        if version > 100:
            raise RequestFailed("an error that has a place already")
        return KEEP if version % 2 else drop("even")


class OnlyTheGroup(Plugin):
    @hookimpl
    def judge_staleness(self, group: Group) -> Verdict:
        return drop(f"prompt {group.prompt_id}")


class Inverts(Plugin):
    @hookimpl(wrapper=True)
    def judge_staleness(self, group: Group, version: int) -> Generator[None, Any, Verdict]:
        verdict = yield
        return drop("inverted") if verdict is KEEP else KEEP


class WrapsMany(Plugin):
    @hookimpl(wrapper=True)
    def judge_group(self, group: Group) -> Generator[None, Any, Any]:
        return (yield)


class WrapsAsync(Plugin):
    @hookimpl(wrapper=True)
    def score_sample(self, prompt: Any, sample: Any) -> Generator[None, Any, Any]:
        return (yield)


def host(*kinds: type[Plugin]) -> Host:
    return Host(
        [Active("staleness", kind.__name__, f"dist-{kind.__name__}", "1.0", kind(PluginOptions(), RUN)) for kind in kinds]
    )


def test_a_slot_hook_is_called_by_the_names_of_its_arguments() -> None:
    judge = host(Odd).one("judge_staleness")
    assert judge(group=GROUP, version=1) is KEEP
    assert judge(version=2, group=GROUP) == drop("even")


def test_an_implementation_may_take_fewer_arguments() -> None:
    assert host(OnlyTheGroup).one("judge_staleness")(group=GROUP, version=1) == drop("prompt 3")


def test_a_wrapper_goes_around_a_slot_hook() -> None:
    judge = host(Odd, Inverts).one("judge_staleness")
    assert judge(group=GROUP, version=1) == drop("inverted")
    assert judge(group=GROUP, version=2) is KEEP
    assert host(Odd, Inverts).owner("judge_staleness") == (
        "staleness plugin 'Odd' (dist-Odd 1.0), wrapped by staleness plugin 'Inverts' (dist-Inverts 1.0)"
    )


@pytest.mark.parametrize("kind", [WrapsMany, WrapsAsync])
def test_hooks_of_many_plugins_and_asynchronous_ones_cannot_be_wrapped(kind: type[Plugin]) -> None:
    with pytest.raises(PluginLoadError, match=f"{kind.__name__}.*only a synchronous hook of a one-plugin slot can be wrapped"):
        host(kind)


@pytest.mark.parametrize("kinds", [(Odd,), (Odd, Inverts)])
def test_an_exception_in_a_slot_hook_names_the_plugin_and_keeps_the_cause(kinds: tuple[type[Plugin], ...]) -> None:
    with pytest.raises(PluginFailed, match=r"staleness plugin 'Odd' \(dist-Odd 1.0\) failed in judge_staleness") as caught:
        host(*kinds).one("judge_staleness")(group=GROUP, version=-1)
    assert isinstance(caught.value.__cause__, KeyError)
    assert "no such version" in caught.value.detail


def test_an_error_of_asyncrls_own_passes_unchanged() -> None:
    with pytest.raises(RequestFailed):
        host(Odd).one("judge_staleness")(group=GROUP, version=101)


def test_two_implementations_of_one_slot_are_refused() -> None:
    with pytest.raises(PluginLoadError, match="needs exactly one implementation, found: .*Odd.*OnlyTheGroup"):
        host(Odd, OnlyTheGroup).one("judge_staleness")

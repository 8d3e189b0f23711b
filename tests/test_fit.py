"""Plugins that cannot work together are refused before anything starts, both named."""

from __future__ import annotations

from typing import Any

import pytest
from asyncrl import KEEP, Deadline, Group, Plugin, Taken, Verdict, hookimpl
from asyncrl.errors import OptionError, PluginFailed
from asyncrl.fit import check_fit
from asyncrl_fifo import Fifo
from simulated import facts, host


class KnowsNoDue(Fifo):
    def buffer_take(self, version: int) -> Taken:  # type: ignore[override]
        return super().buffer_take(version, -1)

    buffer_take = hookimpl(buffer_take)


def policy(on_stale: str) -> tuple[str, str, dict[str, Any]]:
    return ("staleness", "max-gap", {"on_stale": on_stale})


def test_paced_needs_a_policy_with_a_deadline() -> None:
    with pytest.raises(
        OptionError, match="scheduler plugin 'paced'.*needs a plugin that implements staleness_deadline"
    ) as refusal:
        check_fit(host(facts(), ("scheduler", "paced", {})))
    assert "--staleness max-gap" in str(refusal.value)
    check_fit(host(facts(), ("scheduler", "paced", {}), policy("drop")))


def test_waiting_needs_a_buffer_that_can_give_a_group_first() -> None:
    with pytest.raises(OptionError, match="staleness plugin 'max-gap'.*buffer plugin 'KnowsNoDue'.*no parameter `due`"):
        check_fit(host(facts(), ("buffer", KnowsNoDue, {}), policy("wait")))
    check_fit(host(facts(), ("buffer", KnowsNoDue, {}), policy("drop")))
    check_fit(host(facts(), policy("wait")))


@pytest.mark.parametrize("answer", [None, 7, "soon"])
def test_a_deadline_that_is_none_is_its_plugins_fault(answer: Any) -> None:
    class Nonsense(Plugin):
        @hookimpl
        def judge_staleness(self, group: Group, version: int) -> Verdict:
            return KEEP

        @hookimpl
        def staleness_deadline(self, oldest: int) -> Deadline:
            return answer  # type: ignore[no-any-return]

    with pytest.raises(PluginFailed, match=r"staleness plugin 'Nonsense'.*answered staleness_deadline\(0\) with"):
        check_fit(host(facts(), ("staleness", Nonsense, {})))

"""Plugins that cannot work together are refused before anything starts, both named."""

from __future__ import annotations

from typing import Any

import pytest
from asyncrl import Taken, hookimpl
from asyncrl.errors import OptionError
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

"""A plugin that has something to remember gets it back, and only its own."""

from __future__ import annotations

import json
from typing import Any

import pytest
from asyncrl import Plugin, PluginOptions, hookimpl
from asyncrl.errors import PluginFailed
from asyncrl.host import Active, Host
from asyncrl.rollout.plugin_states import plugin_states, restore_plugins
from simulated import facts


class Learns(Plugin):
    """Remembers a number."""

    hook_api = 1
    known: Any = 0

    @hookimpl
    def plugin_state(self) -> dict[str, Any]:
        return {"known": self.known}

    @hookimpl
    def plugin_restore(self, state: dict[str, Any]) -> None:
        self.known = state["known"]


def make(*names: str, distribution: str = "mine") -> tuple[Host, list[Learns]]:
    plugins = [type("Learns", (Learns,), {"slot": "observers", "name": name})(PluginOptions(), facts()) for name in names]
    actives = [Active("observers", plugin.name, distribution, "1.0", plugin) for plugin in plugins]
    return Host(actives), plugins


def test_each_gets_its_own_back() -> None:
    host, (one, other) = make("one", "other")
    one.known, other.known = 3, 4
    states = json.loads(json.dumps(plugin_states(host)))
    again, (other, third, one) = make("other", "third", "one")
    restore_plugins(again, states)
    assert (one.known, other.known, third.known) == (3, 4, 0)


def test_a_plugin_of_the_same_name_from_elsewhere_gets_nothing() -> None:
    host, (one,) = make("one")
    one.known = 3
    again, (stranger,) = make("one", distribution="theirs")
    restore_plugins(again, plugin_states(host))
    assert stranger.known == 0


@pytest.mark.parametrize("known", [object(), float("nan"), {1, 2}])
def test_what_json_cannot_hold_is_the_plugins_fault(known: Any) -> None:
    host, (one,) = make("one")
    one.known = known
    with pytest.raises(
        PluginFailed, match=r"observers plugin 'one' \(mine 1.0\) answered plugin_state with what JSON can't hold"
    ):
        plugin_states(host)

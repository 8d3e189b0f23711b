"""What plugins of the rollout process want kept with a checkpoint, and handing it back to those that are still there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from asyncrl.errors import PluginFailed
from asyncrl.host import Active, Host
from asyncrl.plugins import normalized


def plugin_states(host: Host) -> list[dict[str, Any]]:
    """Ask every plugin that has `plugin_state`. Raises `PluginFailed` for an answer that is no JSON object."""
    states = []
    for active, state in host.each("plugin_state"):
        try:
            if not isinstance(state, dict):
                raise TypeError(f"got {type(state).__name__}, wants a dict")
            json.dumps(state, allow_nan=False)
        except (TypeError, ValueError) as cause:
            raise PluginFailed(f"{active} answered plugin_state with what JSON can't hold: {cause}") from cause
        states.append({**_identity(active), "state": state})
    return states


def restore_plugins(host: Host, states: Sequence[dict[str, Any]]) -> None:
    """Hand each plugin what the same plugin answered; what belongs to none is left alone."""
    for active in host.actives:
        for saved in states:
            if {**saved, **_identity(active)} == saved:
                host.each("plugin_restore", of=active, state=saved["state"])


def _identity(active: Active) -> dict[str, str]:
    return {"slot": active.slot, "name": active.name, "distribution": normalized(active.distribution)}

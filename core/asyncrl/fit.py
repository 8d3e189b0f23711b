"""Whether the plugins that were chosen can work together; asked before anything starts."""

from __future__ import annotations

from asyncrl.errors import OptionError
from asyncrl.host import Host
from asyncrl.rollout.claims import deadline_hook


def check_fit(host: Host) -> None:
    """Refuse a choice of plugins that cannot work. `host` holds all those that the run, or the simulation, uses.

    Raises:
        OptionError: a plugin needs a hook that none implements; the trainer shall wait for groups that the buffer can't give first.
    """
    for active in host.actives:
        for hook, remedy in active.plugin.needs.items():
            if not host.has(hook):
                raise OptionError(
                    f"{active} needs a plugin that implements {hook}, and none of the chosen ones does",
                    origin=active.slot,
                    remedy=remedy,
                )
    deadline = deadline_hook(host)
    if deadline is not None and deadline(0).waits and not host.takes("buffer_take", "due"):
        raise OptionError(
            f"{host.active('staleness')} has the trainer wait for groups that become too old, but {host.active('buffer')} can't "
            "give them first: its buffer_take has no parameter `due`",
            origin="staleness, buffer",
            remedy="choose another buffer, or let staleness drop or retry",
        )

"""`hooks.md`: every hook with its exact signature and contract."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from asyncrl import hookspecs
from asyncrl.hookspecs import HOOK_API, OPTIONAL_HOOKS, SLOT_HOOKS
from asyncrl.plugins import SLOTS

from generator.markdown import code, page, prose, signature

HEAD = f"""\
The hooks of hook API {HOOK_API}.

A plugin implements a hook by a method of that name, marked `@asyncrl.hookimpl`, with the parameters of the signature; it may leave
out those it does not use. A parameter has no default, and no hook answers `None` where a value is asked for.

- A *slot hook* has exactly one implementation among the active plugins, checked at start-up; an exception in it ends the run.
- A hook marked *many* is called on every active plugin of its slot.
- An *observer* hook (`on_…`) may be implemented by any plugin; an exception in it is counted, warned about once, and costs the
  others nothing. Loggers are isolated in the same way.
- Where a hook runs: *controller* is the command itself; *rollout* is the rollout actor; *engine* the actor that owns one engine's
  server; *trainer* is each trainer rank. Each process builds its own object of the plugin.

The types are on the page [Names](names.md); what core promises and asks of each slot is in
[The contract of each slot](../plugins/slots/index.md)."""


def hooks_of(slot: str) -> list[Callable[..., Any]]:
    """Return the hooks that only this slot's plugins may implement, in the order of the page."""
    return [getattr(hookspecs, name) for name in SLOT_HOOKS[slot]]


def free_hooks() -> list[Callable[..., Any]]:
    """Return the hooks that any plugin may implement."""
    owned = {name for names in SLOT_HOOKS.values() for name in names}
    return [spec for name, spec in vars(hookspecs).items() if hasattr(spec, "asyncrl_spec") and name not in owned]


def hooks_page() -> str:
    free = free_hooks()
    lines = ["", HEAD, "", "## Any plugin"]
    lines += [line for hook in free if not hook.__name__.startswith("on_") for line in _section(hook)]
    for slot in SLOTS.values():
        if SLOT_HOOKS[slot.key]:
            lines += ["", f"## {slot.key}", "", f"{slot.help[:1].upper()}{slot.help[1:]}. Entry-point group `{slot.group}`."]
            lines += [line for hook in hooks_of(slot.key) for line in _section(hook)]
    lines += ["", "## Observers", "", "Any plugin may implement these. Those that do nothing else go to `asyncrl.observers`."]
    lines += [line for hook in free if hook.__name__.startswith("on_") for line in _section(hook)]
    return page("Hooks", lines)


def _section(hook: Callable[..., Any]) -> list[str]:
    facts = "".join(f"*{fact}* " for fact in _facts(hook)).rstrip()
    return ["", f"### `{hook.__name__}`", *code(signature(hook)), *(["", facts] if facts else []), *prose(hook.__doc__)]


def _facts(hook: Callable[..., Any]) -> list[str]:
    """What follows from the declaration and is not in the docstring."""
    facts = []
    if hook.__name__ in OPTIONAL_HOOKS:
        facts.append("Optional.")
    one: bool = getattr(hook, "asyncrl_spec")["firstresult"]  # noqa: B009 (a function has no such attribute to a type checker)
    if one and not inspect.iscoroutinefunction(hook):
        facts.append("May be wrapped.")
    return facts

"""The way from a suite's `plugin` to an object of it, in four stages; what fails at one is the business of that stage's rule alone."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from asyncrl.authoring import Plugin, PluginOptions, RunFacts
from asyncrl.checking import build
from asyncrl.errors import AsyncrlError
from asyncrl.fields import plain
from asyncrl.hook_checks import hook_faults
from asyncrl.host import Active, Host
from asyncrl.plugins import Found, PluginSpec, discover, load
from asyncrl.run_file import Given

STAGES = {
    "installed": "test_it_is_installed_under_its_name",
    "loaded": "test_it_loads",
    "hooked": "test_its_hooks_match_their_specifications",
    "built": "test_its_options_build_it",
}
"""Each stage with the rule that fails when it can't be reached."""


class NotReady(Exception):
    """A stage could not be reached because of `cause`; `rule` is the test that says so."""

    def __init__(self, stage: str, cause: Exception) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}")
        self.stage = stage
        self.cause = cause
        self.rule = STAGES[stage]


@dataclass(frozen=True)
class Ready:
    """A plugin that loads: where it comes from, its class, and the options that the suite's author chose."""

    found: Found
    kind: type[Plugin]
    checked: dict[str, PluginOptions] = field(default_factory=dict, compare=False, repr=False)

    def options(self, given: Mapping[str, Any]) -> PluginOptions:
        """Return checked options, made as a run file's are. Raises `AsyncrlError`."""
        written = {name: Given(_jsonable(value), f"options[{name!r}]", Path.cwd()) for name, value in given.items()}
        return build(self.kind.Options, written, "", str(self.found), {})

    def build(self, options: PluginOptions, run: RunFacts) -> Plugin:
        """Construct the plugin. Whatever its constructor raises passes."""
        return self.kind(options, run)

    def active(self, plugin: Plugin) -> Active:
        return Active(self.found.slot, self.found.name, self.found.distribution, self.found.version, plugin)

    def spec(self, options: PluginOptions) -> PluginSpec:
        """What crosses to another process."""
        text = json.dumps(plain(options, secrets=True))
        return PluginSpec(self.found.slot, self.found.name, self.found.distribution, self.found.version, text)


_READY: dict[tuple[str, str], Ready | NotReady] = {}


def ready(slot: str, wanted: str) -> Ready:
    """Find and load a plugin, once a process.

    Args:
        wanted: ``name`` or ``distribution:name``.

    Raises:
        NotReady: it is not installed for this slot, or does not load.
    """
    known = _READY.get((slot, wanted))
    if known is None:
        known = _READY[slot, wanted] = _get_ready(slot, wanted)
    if isinstance(known, NotReady):
        raise known
    return known


def _get_ready(slot: str, wanted: str) -> Ready | NotReady:
    try:
        found = discover().pick(slot, wanted, f"plugin = {wanted!r}")
    except AsyncrlError as cause:
        return NotReady("installed", cause)
    try:
        return Ready(found, load(found))
    except AsyncrlError as cause:
        return NotReady("hooked" if _hooks_are_wrong(found) else "loaded", cause)


def _hooks_are_wrong(found: Found) -> bool:
    """Whether a class that does not load is one whose hooks are at fault."""
    module, _, attribute = found.target.partition(":")
    try:
        kind: Any = import_module(module.strip())
        for part in attribute.strip().split("."):
            kind = getattr(kind, part)
        return inspect.isclass(kind) and issubclass(kind, Plugin) and any(True for _ in hook_faults(found.slot, kind))
    except (Exception, SystemExit):
        return False


def made(one: Ready, given: Mapping[str, Any], run: RunFacts) -> Plugin:
    """Return a plugin that a host accepts; that it does is looked at once for each set of options, because rules build many.

    Raises:
        NotReady: for the stage at which that fails.
    """
    key = repr(sorted(given.items()))
    options = one.checked.get(key)
    try:
        plugin = one.build(options or one.options(given), run)
    except Exception as cause:
        raise NotReady("built", cause) from cause
    if options is None:
        try:
            Host([one.active(plugin)])
        except AsyncrlError as cause:
            raise NotReady("hooked", cause) from cause
        one.checked[key] = plugin.options
    return plugin


def _jsonable(value: Any) -> Any:
    """Options may be written with paths and tuples in them, as Python has them."""
    return json.loads(json.dumps(plain(value, secrets=True)))

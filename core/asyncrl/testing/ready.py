"""The way from a suite's `plugin` to an object of it, in four stages; what fails at one is the business of that stage's rule alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.authoring import Plugin, PluginOptions, RunFacts
from asyncrl.checking import build
from asyncrl.errors import AsyncrlError
from asyncrl.fields import plain
from asyncrl.host import Active, Host
from asyncrl.plugins import Found, PluginSpec, discover, load
from asyncrl.run_file import Given

STAGES = {
    "installed": "test_it_is_installed_under_its_name",
    "loaded": "test_it_loads",
    "built": "test_its_options_build_it",
    "registered": "test_its_hooks_match_their_specifications",
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
        return NotReady("loaded", cause)


def made(one: Ready, given: Mapping[str, Any], run: RunFacts) -> Plugin:
    """Return a plugin that a host accepts. Raises `NotReady` for the stage at which that fails."""
    try:
        plugin = one.build(one.options(given), run)
    except Exception as cause:
        raise NotReady("built", cause) from cause
    try:
        Host([one.active(plugin)])
    except AsyncrlError as cause:
        raise NotReady("registered", cause) from cause
    return plugin


def _jsonable(value: Any) -> Any:
    """Options may be written with paths and tuples in them, as Python has them."""
    return json.loads(json.dumps(plain(value, secrets=True)))

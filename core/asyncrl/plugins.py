"""Plugins by name: what is installed (metadata only), which one a name means, loading it, and rebuilding it in another process."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import json
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

from asyncrl.errors import AmbiguousPlugin, AsyncrlError, PluginLoadError, PluginMismatch, UnknownPlugin

if TYPE_CHECKING:
    from asyncrl.authoring import Plugin, RunFacts
    from asyncrl.host import Host


@dataclass(frozen=True)
class Slot:
    """A place for plugins. `key` is its name in flags and files, `defaults` are active when nothing is chosen."""

    key: str
    group: str
    many: bool
    defaults: tuple[str, ...]
    help: str


SLOTS: dict[str, Slot] = {
    slot.key: slot
    for slot in (
        Slot("task", "asyncrl.tasks", False, ("sort-digits",), "prompts, reward and held-out sets"),
        Slot("producer", "asyncrl.producers", False, ("single-turn",), "how a prompt becomes a group of samples"),
        Slot("scheduler", "asyncrl.schedulers", False, ("sample",), "when a new group may start"),
        Slot("buffer", "asyncrl.buffers", False, ("fifo",), "order and storage of finished groups"),
        Slot("filters", "asyncrl.filters", True, (), "which finished groups are kept"),
        Slot("staleness", "asyncrl.staleness", False, ("none",), "how old a group may be"),
        Slot("engine", "asyncrl.engines", False, ("torch",), "generation"),
        Slot("trainer", "asyncrl.trainers", False, ("fsdp",), "learning"),
        Slot("eval", "asyncrl.evals", False, ("shared",), "where held-out sets are evaluated"),
        Slot("loggers", "asyncrl.loggers", True, ("console", "jsonl"), "where metrics go"),
        Slot("observers", "asyncrl.observers", True, (), "nothing; they watch"),
    )
}


@dataclass(frozen=True)
class Found:
    """An installed plugin as its distribution's metadata describes it; nothing of it has been imported."""

    slot: str
    name: str
    distribution: str
    version: str
    target: str
    summary: str

    def __str__(self) -> str:
        return f"{self.slot} plugin {self.name!r} ({self.distribution} {self.version}, {self.target})"

    @property
    def and_summary(self) -> str:
        """``: what it does``, to end a heading; '' where its distribution says nothing."""
        return f": {self.summary}" if self.summary else ""


# Discovery --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Catalog:
    """Every installed plugin, in the order of slots and names. `strays` describes entry points that no slot can use."""

    plugins: tuple[Found, ...]
    strays: tuple[str, ...] = ()

    def of(self, slot: str) -> list[Found]:
        return [found for found in self.plugins if found.slot == slot]

    def ambiguous(self) -> dict[tuple[str, str], str]:
        """Return {(slot, name): what is wrong, and how to pick one} for each name that several distributions offer."""
        offers: dict[tuple[str, str], list[Found]] = {}
        for found in self.plugins:
            offers.setdefault((found.slot, found.name), []).append(found)
        return {key: " ".join(_offered(several)) for key, several in offers.items() if len(several) > 1}

    def pick(self, slot: str, wanted: str, origin: str) -> Found:
        """Return the plugin that `wanted` (``name`` or ``distribution:name``) means.

        Raises:
            UnknownPlugin: with the nearest name, what is installed for the slot, and other slots that have the name.
            AmbiguousPlugin: two distributions offer the name and none was said.
        """
        distribution, colon, name = wanted.rpartition(":")
        if not name or (colon and not distribution):
            raise UnknownPlugin(f"got {wanted!r}, wants NAME or DISTRIBUTION:NAME", origin=origin)
        named = [found for found in self.of(slot) if found.name == name]
        matches = [found for found in named if not distribution or normalized(found.distribution) == normalized(distribution)]
        if not matches:
            raise self._unknown(slot, name, distribution, named, origin)
        if len(matches) > 1:
            message, remedy = _offered(matches)
            raise AmbiguousPlugin(message, origin=origin, remedy=remedy[1:-1])
        return matches[0]

    def _unknown(self, slot: str, name: str, distribution: str, named: list[Found], origin: str) -> UnknownPlugin:
        installed = list(dict.fromkeys(found.name for found in self.of(slot)))
        if distribution and named:
            offers = ", ".join(found.distribution for found in named)
            message = f"distribution {distribution!r} offers no {slot} plugin {name!r}; these do: {offers}"
            return UnknownPlugin(message, origin=origin)
        message = f"no {slot} plugin {name!r} is installed"
        if near := nearest(name, installed):
            message += f"; did you mean {near!r}?"
        if elsewhere := sorted({found.slot for found in self.plugins if found.name == name}):
            message += f"; there is one for {' and '.join(elsewhere)}"
        for stray in self.strays:  # of a group that no slot has, only what may have been meant for this slot
            if "unknown entry-point group" not in stray or f"offers {name!r}" in stray or repr(SLOTS[slot].group) in stray:
                message += f"; {stray}"
        remedy = f"installed for {slot}: {', '.join(installed)}" if installed else f"nothing is installed for {slot}"
        return UnknownPlugin(message, origin=origin, remedy=remedy)


def _offered(several: Sequence[Found]) -> tuple[str, str]:
    """A name that several distributions offer: what is wrong, and in brackets what to write."""
    both = " and ".join(f"{found.distribution} {found.version}" for found in several)
    choices = " or ".join(f"{found.distribution}:{found.name}" for found in several)
    return f"{several[0].slot} plugin {several[0].name!r} is offered by {both}", f"(write {choices})"


def normalized(distribution: str) -> str:
    """Return a distribution's name as package indexes compare it: ``Asyncrl_Plugin.X`` is ``asyncrl-plugin-x``."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the name that is spelled most like another, whatever their case, dashes and underscores; '' where none is near."""
    spelled = {normalized(each): each for each in names}
    near = difflib.get_close_matches(normalized(name), spelled, n=1)
    return spelled[near[0]] if near else ""


def discover(path: Sequence[str] | None = None) -> Catalog:
    """Read the entry points of every distribution on `path` (default `sys.path`). Imports none of them.

    A distribution that is found twice, as an editable install is from its own folder, counts once: the first on the path, which is
    also the one that an import would take.
    """
    slots = {slot.group: slot.key for slot in SLOTS.values()}
    plugins: dict[tuple[str, str, str], Found] = {}
    strays: list[str] = []
    seen: set[str] = set()
    for distribution in metadata.distributions() if path is None else metadata.distributions(path=list(path)):
        try:
            if "asyncrl." not in (distribution.read_text("entry_points.txt") or ""):
                continue
            name, version, summary = _about(distribution)
            points = list(distribution.entry_points)
        except Exception as cause:  # a broken installation is only the business of whoever selects from it
            where = getattr(distribution, "_path", "an installed distribution")
            strays.append(f"the metadata in {where} can't be read: {type(cause).__name__}: {cause}")
            continue
        if normalized(name) in seen:
            continue
        seen.add(normalized(name))
        for point in points:
            if point.group in slots:
                found = Found(slots[point.group], point.name, name, version, point.value, summary.strip())
                plugins.setdefault((found.slot, found.name, normalized(name)), found)
            elif point.group.startswith("asyncrl."):
                near = difflib.get_close_matches(point.group, slots, n=1)
                hint = f", did its author mean {near[0]!r}?" if near else ""
                strays.append(f"{name} offers {point.name!r} to the unknown entry-point group {point.group!r}{hint}")
    order = list(SLOTS)
    ordered = sorted(plugins.values(), key=lambda found: (order.index(found.slot), found.name, found.distribution))
    return Catalog(tuple(ordered), tuple(strays))


def _about(distribution: metadata.Distribution) -> tuple[str, str, str]:
    """Name, version and summary, from the first lines of the metadata: the parser of `importlib.metadata` takes as long as all the rest."""
    text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
    lines = [line.partition(":") for line in text.partition("\n\n")[0].splitlines() if not line[:1].isspace()]
    values = {key.lower(): value.strip() for key, _, value in lines}
    summary = values.get("summary", "")  # setuptools once wrote UNKNOWN for none
    return values.get("name") or "unnamed", values.get("version") or "unknown", "" if summary == "UNKNOWN" else summary


# Loading ----------------------------------------------------------------------------------------------------------------


def load(found: Found) -> type[Plugin]:
    """Import a plugin and return its class, with `slot` and `name` filled in.

    The class returned is a subclass made for this entry, so that one class may serve under several names. What the import prints goes
    to stderr: stdout is the command's own.

    Raises:
        PluginLoadError: naming plugin, distribution, version and target; the cause is chained.
    """
    from asyncrl.authoring import Plugin
    from asyncrl.scrub import said_by
    from asyncrl.waits import telling

    module, _, attribute = found.target.partition("[")[0].partition(":")
    if not attribute.strip():
        raise PluginLoadError(f"{found} can't be loaded: its entry point names no class; right is MODULE:CLASS")
    try:
        with contextlib.redirect_stdout(sys.stderr), telling(f"importing {found}"):
            kind: Any = import_module(module.strip())
        for part in attribute.strip().split("."):
            kind = getattr(kind, part)
    except KeyboardInterrupt:
        raise
    except BaseException as cause:  # a module may do anything, sys.exit() too
        raise load_error(f"{found} can't be loaded: {said_by(cause)}{_wanted(found)}", cause) from cause
    if not (inspect.isclass(kind) and issubclass(kind, Plugin)):
        raise PluginLoadError(f"{found} is no class derived from asyncrl.Plugin")
    try:
        fault = next(faults(found.slot, kind), "")
    except KeyboardInterrupt:
        raise
    except BaseException as cause:  # a metaclass, a descriptor or a factory of defaults is the plugin's code too
        raise load_error(f"{found} can't be looked at: {said_by(cause)}", cause) from cause
    if fault:
        raise PluginLoadError(f"{found}: {fault}")
    members = {"slot": found.slot, "name": found.name, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind,), members)


def faults(slot: str, kind: type[Plugin]) -> Iterator[str]:
    """Everything for which a plugin class is refused in a slot, each in one line that begins with the class or hook and its place."""
    from asyncrl.authoring import PluginOptions
    from asyncrl.hook_checks import hook_faults, missing_hooks, place_of
    from asyncrl.metrics import MetricSet
    from asyncrl.option_checks import option_faults

    yield from hook_faults(slot, kind)
    yield from missing_hooks(slot, kind)
    if not (inspect.isclass(kind.Metrics) and issubclass(kind.Metrics, MetricSet)):
        yield f"{place_of(kind)}: its Metrics do not derive from asyncrl.MetricSet"
    if not (inspect.isclass(kind.Options) and issubclass(kind.Options, PluginOptions)):
        yield f"{place_of(kind)}: its Options do not derive from asyncrl.PluginOptions"
        return
    yield from (f"{place_of(kind.Options)}: {fault}" for fault in option_faults(kind.Options))


def implemented(kind: type[Plugin]) -> list[str]:
    """Names of the hooks that a class implements or wraps."""
    from asyncrl.hook_checks import implemented, wrapped

    return sorted([*implemented(kind), *wrapped(kind)])


def load_error(message: str, cause: BaseException, secrets: Collection[str] = ()) -> PluginLoadError:
    """Return the error for an exception of a plugin's own, with its traceback. Where there are secrets it chains no cause, because whoever
    logs the error would print what the cause says of them; pydantic's says more than others."""
    import traceback

    from asyncrl.scrub import hide

    error = PluginLoadError(hide(message, secrets))
    head = "Traceback (most recent call last):\n"
    lines = [head, *traceback.format_tb(cause.__traceback__)] if secrets else traceback.format_exception(cause)
    error.detail = hide("".join(lines), secrets)
    error.__cause__ = None if secrets else cause
    return error


def _wanted(found: Found) -> str:
    """What a plugin's distribution asks of asyncrl-core, if another one is installed; its import may have failed for that."""
    from packaging.requirements import Requirement

    with contextlib.suppress(Exception):
        have = metadata.version("asyncrl-core")
        for line in metadata.distribution(found.distribution).requires or ():
            wanted = Requirement(line)
            if normalized(wanted.name) == "asyncrl-core" and not wanted.specifier.contains(have, prereleases=True):
                return f"; {found.distribution} needs {wanted}, and {have} is installed"
    return ""


# Between processes --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PluginSpec:
    """All of a plugin that crosses a process boundary. `options` is JSON; it may hold secrets, so it is never shown."""

    slot: str
    name: str
    distribution: str
    version: str
    options: str = field(repr=False)


def build_host(specs: Sequence[PluginSpec], facts: RunFacts, slots: Collection[str] | None = None) -> Host:
    """Build the plugins of `slots` (all by default) in this process, from what is installed here.

    Raises:
        PluginMismatch: another version, or nothing, is installed here; told before any of them is imported.
        PluginLoadError: a plugin can't be imported, or its constructor raised.
    """
    from asyncrl.hook_trace import HookTrace
    from asyncrl.host import Active, Host

    catalog = discover()
    here = [(spec, _same(spec, catalog)) for spec in specs if slots is None or spec.slot in slots]
    actives = [
        Active(spec.slot, spec.name, spec.distribution, spec.version, _construct(spec, load(found), facts))
        for spec, found in here
    ]
    return Host(actives, HookTrace.of_run(facts, slots) if facts.trace_hooks else None)


def _same(spec: PluginSpec, catalog: Catalog) -> Found:
    import socket

    here = [
        found
        for found in catalog.of(spec.slot)
        if found.name == spec.name and normalized(found.distribution) == normalized(spec.distribution)
    ]
    if here and here[0].version == spec.version:
        return here[0]
    raise PluginMismatch(
        f"node {socket.gethostname()}: wanted {spec.slot} plugin {spec.name!r} of {spec.distribution} {spec.version}, "
        f"found {f'version {here[0].version}' if here else 'none'}",
        remedy="install the same distributions on every node",
    )


def _construct(spec: PluginSpec, kind: type[Plugin], facts: RunFacts) -> Plugin:
    from asyncrl.scrub import said_by, secrets_in
    from asyncrl.waits import telling

    try:
        with telling(f"making {spec.slot} plugin {spec.name!r} ({spec.distribution} {spec.version})"):
            plugin = kind(kind.Options.model_validate_json(spec.options, strict=True), facts)
        if not hasattr(plugin, "metrics"):
            raise TypeError("its __init__ does not call super().__init__(options, run)")
        return plugin
    except (AsyncrlError, KeyboardInterrupt):
        raise
    except BaseException as cause:  # sys.exit() too
        where = f"{spec.slot} plugin {spec.name!r} ({spec.distribution} {spec.version})"
        secrets = secrets_in(kind.Options, json.loads(spec.options))
        error = load_error(f"{where} can't be constructed: {said_by(cause)}", cause, secrets)
        raise error from error.__cause__

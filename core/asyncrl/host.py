"""The active plugins of one process, and the three ways to call them: one slot hook, a many-hook, an observer hook."""

from __future__ import annotations

import asyncio
import inspect
import logging
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pluggy

from asyncrl import hookspecs
from asyncrl.authoring import Plugin
from asyncrl.errors import AsyncrlError, PluginFailed, PluginLoadError
from asyncrl.hook_checks import SPECS, hook_faults, implemented, wrapped
from asyncrl.hook_trace import HookTrace
from asyncrl.metrics import Axis, Counter, Delta, MetricSet
from asyncrl.scrub import hide, said_by, secrets_of

log = logging.getLogger("asyncrl")

FAULTS = (Exception, SystemExit, asyncio.CancelledError)
"""What a synchronous hook may raise: it is nobody's cancellation, and a plugin does not end the process."""


class HostMetrics(MetricSet):
    observer_failures = Counter("Exceptions raised by observer hooks", unit="calls", axis=Axis.WALL_SECONDS, label="plugin")


@dataclass(frozen=True)
class Active:
    """One plugin object with where it came from."""

    slot: str
    name: str
    distribution: str
    version: str
    plugin: Plugin

    def __str__(self) -> str:
        return f"{self.slot} plugin {self.name!r} ({self.distribution} {self.version})"


class Host:
    """Registers plugins with pluggy, checks them, and calls them.

    Args:
        actives: the plugins of this process.
        trace: writes down every call; None for a run without.

    Raises:
        PluginLoadError: a hook is missing, unknown, doubled, or of the wrong kind.
    """

    def __init__(self, actives: Iterable[Active], trace: HookTrace | None = None) -> None:
        self.actives = tuple(actives)
        self.trace = trace
        self.metrics = HostMetrics("plugins")
        self._manager = _Manager("asyncrl")
        self._manager.add_hookspecs(hookspecs)
        self._by_object: dict[int, Active] = {}
        self._warned: set[tuple[str, str]] = set()
        self._many: dict[str, list[tuple[Active, Callable[..., Any], tuple[str, ...]]]] = {}
        self._secrets = sorted({text for active in self.actives for text in secrets_of(active.plugin.options)}, key=len)[::-1]
        if trace is not None:
            trace.hide = self._hide
        for active in self.actives:
            self._register(active)
        for hook, spec in SPECS.items():
            if vars(spec)["asyncrl_spec"]["firstresult"] and len(self._owners(hook)) > 1:
                self._only(hook)

    def active(self, slot: str) -> Active:
        """Return the one active plugin of a slot with where it came from. Raises KeyError when there is none."""
        for active in self.actives:
            if active.slot == slot:
                return active
        raise KeyError(slot)

    def plugin(self, slot: str) -> Any:
        """Return the one active plugin object of a slot. Raises KeyError when there is none."""
        return self.active(slot).plugin

    def one(self, hook: str) -> Callable[..., Any]:
        """Return a callable for a slot hook; an exception in it becomes `PluginFailed` with the cause chained.

        For an asynchronous hook the callable returns an awaitable with the same guarantee. `AsyncrlError`s pass unchanged.
        """
        owner = self._only(hook)
        active = self._by_object[id(owner.plugin)]
        spec = SPECS[hook]
        asynchronous = inspect.iscoroutinefunction(spec)
        names = tuple(inspect.signature(spec).parameters)
        # Going through pluggy costs several microseconds a call, which only a wrapper is worth.
        direct = len(self._implementers(hook)) == 1
        caller = owner.function if direct else getattr(self._manager.hook, hook)
        passed = owner.argnames if direct else names
        if self.trace is not None:
            caller = self.trace.around(f"{active.slot} {active.name}", hook, caller, passed, asynchronous=asynchronous)

        def failed(cause: BaseException) -> PluginFailed:
            return self._failed(active, hook, cause)

        return _guarded(caller, names, passed, failed, self._hide_in, asynchronous=asynchronous)

    def owner(self, hook: str) -> str:
        """Return who implements a slot hook, and who is wrapped around it, for messages."""
        return self._with_wrappers(self._by_object[id(self._owners(hook)[0].plugin)], hook)

    def takes(self, hook: str, argument: str) -> bool:
        """Whether the implementation of a slot hook has a parameter of this name."""
        return any(argument in impl.argnames for impl in self._owners(hook))

    def has(self, hook: str) -> bool:
        """Whether any active plugin implements the hook; to wrap it is not enough."""
        return bool(self._owners(hook))

    def each(self, hook: str, of: Active | None = None, **arguments: Any) -> list[tuple[Active, Any]]:
        """Call a synchronous many-hook on every plugin that implements it, in the order of selection; with `of`, on that one alone."""
        answers = []
        for active, function, names in self._many[hook] if hook in self._many else self._implementations(hook):
            if of is not None and active is not of:
                continue
            try:
                answers.append((active, function(*[arguments[name] for name in names])))
            except AsyncrlError as error:
                self._hide_in(error)
                raise
            except FAULTS as cause:
                failed = self._failed(active, hook, cause)
                raise failed from failed.__cause__
        return answers

    def observe(self, hook: str, **arguments: Any) -> None:
        """Call an observer or logger hook on every plugin that implements it; failures are counted and warned about once."""
        for active, function, names in self._many[hook] if hook in self._many else self._implementations(hook):
            try:
                function(*[arguments[name] for name in names])
            except FAULTS as cause:
                self._observer_failed(active, hook, cause)

    def drain(self) -> list[Delta]:
        """Take the metrics of every plugin and of the host itself."""
        return [delta for part in [self.metrics, *(a.plugin.metrics for a in self.actives)] if (delta := part.drain())]

    def _implementers(self, hook: str) -> list[pluggy.HookImpl]:
        impls: list[pluggy.HookImpl] = getattr(self._manager.hook, hook).get_hookimpls()
        return impls

    def _owners(self, hook: str) -> list[pluggy.HookImpl]:
        """The implementations of a hook without the wrappers around it."""
        return [impl for impl in self._implementers(hook) if not impl.wrapper]

    def _only(self, hook: str) -> pluggy.HookImpl:
        owners = self._owners(hook)
        if len(owners) != 1:
            found = ", ".join(str(self._by_object[id(impl.plugin)]) for impl in owners) or "none"
            raise PluginLoadError(f"hook {hook} needs exactly one implementation, found: {found}")
        return owners[0]

    def _implementations(self, hook: str) -> list[tuple[Active, Callable[..., Any], tuple[str, ...]]]:
        found = []
        for impl in self._implementers(hook):
            active, function = self._by_object[id(impl.plugin)], impl.function
            if self.trace is not None:
                function = self.trace.around(f"{active.slot} {active.name}", hook, function, impl.argnames, asynchronous=False)
            found.append((active, function, impl.argnames))
        found.sort(key=lambda entry: self.actives.index(entry[0]))
        self._many[hook] = found
        return found

    def _register(self, active: Active) -> None:
        kind, plugin = type(active.plugin), active.plugin
        for fault in hook_faults(active.slot, kind):
            raise PluginLoadError(f"{active}: {fault}")
        for name in vars(plugin):
            if name in SPECS:
                raise PluginLoadError(f"{active}: its constructor sets {name} on the object; a hook is a method of the class")
        self._manager.hooks = frozenset([*implemented(kind), *wrapped(kind)])
        self._manager.register(plugin, name=f"{active.slot}:{active.distribution}:{active.name}")
        self._by_object[id(plugin)] = active

    def _hide(self, text: str) -> str:
        return hide(text, self._secrets) if self._secrets else text

    def _hide_in(self, error: AsyncrlError) -> None:
        """An error of asyncrl's own passes as it is, but for secrets."""
        error.message = self._hide(error.message)
        error.args = (error.message,)

    def _failed(self, active: Active, hook: str, cause: BaseException) -> PluginFailed:
        at_fault = self._raiser(cause) or self._with_wrappers(active, hook)
        error = PluginFailed(f"{at_fault} failed in {hook}: {self._hide(said_by(cause))}")
        trace = "".join(traceback.format_exception(cause))
        error.detail = self._hide(trace)
        # A cause that speaks of a secret is not chained: whoever logs the error would print it.
        error.__cause__ = cause if error.detail == trace else None
        return error

    def _with_wrappers(self, active: Active, hook: str) -> str:
        wrappers = [self._by_object[id(impl.plugin)] for impl in self._implementers(hook) if impl.wrapper]
        return ", wrapped by ".join(map(str, [active, *wrappers]))

    def _raiser(self, cause: BaseException) -> Active | None:
        """The plugin whose hook was entered last before an exception: a wrapper may fail too."""
        found = None
        for frame, _ in traceback.walk_tb(cause.__traceback__):
            owner = self._by_object.get(id(frame.f_locals.get(frame.f_code.co_varnames[0]))) if frame.f_code.co_varnames else None
            if owner is not None and frame.f_code.co_name in SPECS:
                found = owner
        return found

    def _observer_failed(self, active: Active, hook: str, cause: BaseException) -> None:
        self.metrics.observer_failures.add(1, active.name)
        if (active.name, hook) not in self._warned:
            self._warned.add((active.name, hook))
            frames = traceback.extract_tb(cause.__traceback__)
            where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
            log.warning("%s failed in %s (said once)%s: %s", active, hook, where, self._hide(said_by(cause)))


class _Manager(pluggy.PluginManager):
    """Takes only what is checked for a hook: pluggy alone would register any attribute that has the mark."""

    hooks: frozenset[str] = frozenset()

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> Any:
        return super().parse_hookimpl_opts(plugin, name) if name in self.hooks else None


def _guarded(
    function: Callable[..., Any],
    names: Sequence[str],
    passed: Sequence[str],
    failed: Callable[[BaseException], PluginFailed],
    hide_in: Callable[[AsyncrlError], None],
    *,
    asynchronous: bool,
) -> Callable[..., Any]:
    """Return a callable of the arguments `names` that calls `function` with those `passed`, exceptions turned into `PluginFailed`.
    Written out for the hook's arguments, because passing them on as `**arguments` costs more than most hooks do."""
    source = (
        f"{'async ' * asynchronous}def call({', '.join(names)}):\n"
        f"    try:\n"
        f"        return {'await ' * asynchronous}function({', '.join(f'{name}={name}' for name in passed)})\n"
        f"    except AsyncrlError as error:\n"
        f"        hide_in(error)\n"
        f"        raise\n"
        f"    except FAULTS as cause:\n"
        f"        error = failed(cause)\n"
        f"        raise error from error.__cause__\n"
    )
    faults = (Exception, SystemExit) if asynchronous else FAULTS
    scope: dict[str, Any] = {"function": function, "failed": failed, "hide_in": hide_in}
    scope |= {"AsyncrlError": AsyncrlError, "FAULTS": faults}
    exec(source, scope)  # noqa: S102 - the lines above, and nothing from elsewhere
    call: Callable[..., Any] = scope["call"]
    return call

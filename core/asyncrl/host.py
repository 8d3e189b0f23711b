"""The active plugins of one process, and the three ways to call them: one slot hook, a many-hook, an observer hook."""

from __future__ import annotations

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
from asyncrl.metrics import Axis, Counter, Delta, MetricSet

log = logging.getLogger("asyncrl")


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

    Raises:
        PluginLoadError: a hook is missing, unknown, doubled, or of the wrong kind.
    """

    def __init__(self, actives: Iterable[Active]) -> None:
        self.actives = tuple(actives)
        self.metrics = HostMetrics("plugins")
        self._manager = pluggy.PluginManager("asyncrl")
        self._manager.add_hookspecs(hookspecs)
        self._by_object: dict[int, Active] = {}
        self._warned: set[tuple[str, str]] = set()
        self._many: dict[str, list[tuple[Active, Callable[..., Any], tuple[str, ...]]]] = {}
        for active in self.actives:
            self._register(active)

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
        impls = getattr(self._manager.hook, hook).get_hookimpls()
        owners = [impl for impl in impls if not impl.wrapper and not impl.hookwrapper]
        if len(owners) != 1:
            found = ", ".join(str(self._by_object[id(impl.plugin)]) for impl in owners) or "none"
            raise PluginLoadError(f"hook {hook} needs exactly one implementation, found: {found}")
        active = self._by_object[id(owners[0].plugin)]
        spec = getattr(hookspecs, hook)
        names = tuple(inspect.signature(spec).parameters)
        # Going through pluggy costs several microseconds a call, which only a wrapper is worth.
        direct = len(impls) == 1
        caller = owners[0].function if direct else getattr(self._manager.hook, hook)
        passed = owners[0].argnames if direct else names

        if inspect.iscoroutinefunction(spec):

            async def call_async(**arguments: Any) -> Any:
                try:
                    return await caller(**{name: arguments[name] for name in passed})
                except AsyncrlError:
                    raise
                except Exception as cause:
                    raise self._failed(active, hook, cause) from cause

            return call_async

        def failed(cause: Exception) -> PluginFailed:
            return self._failed(active, hook, cause)

        return _guarded(caller, names, passed, failed)

    def owner(self, hook: str) -> str:
        """Return who implements a slot hook, for messages."""
        impls = getattr(self._manager.hook, hook).get_hookimpls()
        return str(next(self._by_object[id(impl.plugin)] for impl in impls if not impl.wrapper and not impl.hookwrapper))

    def takes(self, hook: str, argument: str) -> bool:
        """Whether the implementation of a slot hook has a parameter of this name."""
        impls = getattr(self._manager.hook, hook).get_hookimpls()
        return any(argument in impl.argnames for impl in impls if not impl.wrapper and not impl.hookwrapper)

    def has(self, hook: str) -> bool:
        """Whether any active plugin implements the hook."""
        return bool(getattr(self._manager.hook, hook).get_hookimpls())

    def each(self, hook: str, **arguments: Any) -> list[tuple[Active, Any]]:
        """Call a synchronous many-hook on every plugin that implements it, in the order of selection."""
        answers = []
        for active, function, names in self._implementations(hook):
            try:
                answers.append((active, function(*[arguments[name] for name in names])))
            except AsyncrlError:
                raise
            except Exception as cause:
                raise self._failed(active, hook, cause) from cause
        return answers

    def observe(self, hook: str, **arguments: Any) -> None:
        """Call an observer or logger hook on every plugin that implements it; failures are counted and warned about once."""
        for active, function, names in self._implementations(hook):
            try:
                function(*[arguments[name] for name in names])
            except Exception as cause:
                self.metrics.observer_failures.add(1, active.name)
                if (active.name, hook) not in self._warned:
                    self._warned.add((active.name, hook))
                    log.warning("%s failed in %s (said once): %s: %s", active, hook, type(cause).__name__, cause)

    def drain(self) -> list[Delta]:
        """Take the metrics of every plugin and of the host itself."""
        return [delta for part in [self.metrics, *(a.plugin.metrics for a in self.actives)] if (delta := part.drain())]

    def _implementations(self, hook: str) -> list[tuple[Active, Callable[..., Any], tuple[str, ...]]]:
        found = self._many.get(hook)
        if found is None:
            impls = getattr(self._manager.hook, hook).get_hookimpls()
            unsorted = [(self._by_object[id(impl.plugin)], impl.function, impl.argnames) for impl in impls]
            found = self._many[hook] = sorted(unsorted, key=lambda entry: self.actives.index(entry[0]))
        return found

    def _register(self, active: Active) -> None:
        for name, function in inspect.getmembers(type(active.plugin), inspect.isfunction):
            self._check_hook(active, name, function)
        try:
            self._manager.register(active.plugin, name=f"{active.slot}:{active.name}")
        except pluggy.PluginValidationError as cause:
            raise PluginLoadError(f"{active}: {cause}") from cause
        self._by_object[id(active.plugin)] = active

    def _check_hook(self, active: Active, name: str, function: Callable[..., Any]) -> None:
        options = getattr(function, "asyncrl_impl", None)
        if options is None:
            return
        where = f"{active}: {name} at {inspect.getsourcefile(function)}:{function.__code__.co_firstlineno}"
        spec = getattr(hookspecs, name, None)
        if spec is None or not hasattr(spec, "asyncrl_spec"):
            raise PluginLoadError(f"{where}: there is no hook of this name")
        wraps = options["wrapper"] or options["hookwrapper"]
        if wraps and (inspect.iscoroutinefunction(spec) or not spec.asyncrl_spec["firstresult"]):
            raise PluginLoadError(f"{where}: only a synchronous hook of a one-plugin slot can be wrapped")
        if not wraps and inspect.iscoroutinefunction(spec) != inspect.iscoroutinefunction(function):
            wanted = "async def" if inspect.iscoroutinefunction(spec) else "def"
            raise PluginLoadError(f"{where}: the hook must be written with `{wanted}`")

    def _failed(self, active: Active, hook: str, cause: Exception) -> PluginFailed:
        error = PluginFailed(f"{active} failed in {hook}: {type(cause).__name__}: {cause}")
        error.detail = "".join(traceback.format_exception(cause))
        return error


def _guarded(
    function: Callable[..., Any], names: Sequence[str], passed: Sequence[str], failed: Callable[[Exception], PluginFailed]
) -> Callable[..., Any]:
    """Return a callable of the arguments `names` that calls `function` with those `passed`, exceptions turned into `PluginFailed`.
    Written out for the hook's arguments, because passing them on as `**arguments` costs more than most hooks do."""
    source = (
        f"def call({', '.join(names)}):\n"
        f"    try:\n"
        f"        return function({', '.join(f'{name}={name}' for name in passed)})\n"
        f"    except AsyncrlError:\n"
        f"        raise\n"
        f"    except Exception as cause:\n"
        f"        raise failed(cause) from cause\n"
    )
    scope: dict[str, Any] = {"function": function, "failed": failed, "AsyncrlError": AsyncrlError}
    exec(source, scope)
    call: Callable[..., Any] = scope["call"]
    return call

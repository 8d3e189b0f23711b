"""Whether a plugin class keeps to the hooks' page. What does not would be called wrongly or never, so it is refused at once."""

from __future__ import annotations

import difflib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

from asyncrl import hookspecs
from asyncrl.authoring import Plugin
from asyncrl.hookspecs import ACCEPTED_HOOK_APIS, ANY_PLUGIN_HOOKS, CALLED_IN, HOOK_API, OPTIONAL_HOOKS, PROCESSES, SLOT_HOOKS

SPECS: dict[str, Callable[..., Any]] = {
    name: value for name, value in vars(hookspecs).items() if inspect.isfunction(value) and hasattr(value, "asyncrl_spec")
}
"""Every hook by name."""
NEAR = 0.8
"""How alike, from 0 to 1, a name is to a hook's for its author to have meant the hook."""


def hook_faults(slot: str, kind: type[Plugin]) -> Iterator[str]:
    """Everything for which a plugin class of a slot is refused, as ``buffer_put at FILE:LINE: what is wrong``."""
    if fault := _api_fault(kind):
        yield f"{place_of(kind)}: {fault}"
        return
    for name in dir(kind):
        member = inspect.getattr_static(kind, name)
        function, options = _implementation(member)
        if options is not None:
            fault = _member_fault(member) or _name_fault(slot, name, options) or _call_fault(name, function, options)
        else:
            fault = f"is named like a hook, but is not marked @hookimpl; {_definition(name)}" if name in SPECS else ""
        if fault:
            yield f"{name}{_place(function)}: {fault}"


def missing_hooks(slot: str, kind: type[Plugin]) -> Iterator[str]:
    """What a class lacks to serve a slot, as ``NAME at FILE:LINE: what is missing``."""
    have, around = implemented(kind), wrapped(kind)
    if not have and not around:
        yield f"{place_of(kind)}: implements no hook: methods need the mark @hookimpl"
        return
    needed = [hook for hook in SLOT_HOOKS[slot] if hook not in OPTIONAL_HOOKS and _is_for_one(hook)]
    missing = [hook for hook in needed if hook not in have]
    if missing:
        text = f"does not implement {', '.join(missing)}: each needs a method of that name marked @hookimpl"
    elif SLOT_HOOKS[slot] and not needed and not set(have) & set(SLOT_HOOKS[slot]):
        missing = list(SLOT_HOOKS[slot])
        text = f"implements none of {', '.join(missing)}: one needs a method of that name marked @hookimpl"
    else:
        return
    if wrong := [hook for hook in around if hook in missing]:
        text += f"; its wrapper of {wrong[0]} is no implementation"
    for name, function in _unmarked(kind):
        if difflib.get_close_matches(name, missing, n=1, cutoff=NEAR):
            text += f"; is {name}{_place(function)} meant to be one?"
    yield f"{place_of(kind)}: {text}"


def hook_doubts(slot: str, kind: type[Plugin]) -> list[str]:
    """What is no fault for certain, as ``on_stpe at FILE:LINE: …``: public methods without the mark that are spelled nearly like a hook
    which the class does not implement, and an old hook API."""
    doubts = []
    if kind.hook_api != HOOK_API:
        doubts.append(f"hook API {kind.hook_api} is going out of use; the current one is {HOOK_API}")
    missing = [hook for hook in SPECS if hook not in implemented(kind) and (_may_be_anyones(hook) or hook in SLOT_HOOKS[slot])]
    for name, function in _unmarked(kind):
        if near := difflib.get_close_matches(name, missing, n=1, cutoff=NEAR):
            remedy = f"did its author mean {near[0]!r}? A helper's name can begin with an underscore"
            doubts.append(f"{name}{_place(function)}: is no hook and will not be called; {remedy}")
    return doubts


def implemented(kind: type[Plugin]) -> list[str]:
    """Names of the methods that are marked as hook implementations, wrappers left out."""
    return [name for name, options in _marked(kind) if not options["wrapper"]]


def wrapped(kind: type[Plugin]) -> list[str]:
    """Names of the hooks that a class wraps."""
    return [name for name, options in _marked(kind) if options["wrapper"]]


# One check each -----------------------------------------------------------------------------------------------------------


def _api_fault(kind: type[Plugin]) -> str:
    if type(kind.hook_api) is not int:
        return f"has hook_api = {kind.hook_api!r}, which is no number"
    if kind.hook_api in ACCEPTED_HOOK_APIS:
        return ""
    accepted = " and ".join(str(version) for version in ACCEPTED_HOOK_APIS)
    older = "a newer version of the plugin" if kind.hook_api < HOOK_API else "a newer asyncrl"
    return f"was written for hook API {kind.hook_api}, and this asyncrl has {accepted}: install {older}"


def _member_fault(member: Any) -> str:
    if inspect.isfunction(member):
        return ""
    return f"a hook is a plain method, not a {type(member).__name__}"


def _name_fault(slot: str, name: str, options: dict[str, Any]) -> str:
    if options["specname"]:
        return "a hook is implemented by the method of its name; specname is not used"
    spec = SPECS.get(name)
    if spec is None:
        near = difflib.get_close_matches(name, SPECS, n=1)
        return "there is no hook of this name" + (f"; did its author mean {near[0]!r}?" if near else "")
    if options["hookwrapper"]:
        return "wrappers are written @hookimpl(wrapper=True), not with hookwrapper"
    if options["optionalhook"]:
        return "optionalhook is not used: a hook that does not exist is always refused"
    if options["wrapper"] and (inspect.iscoroutinefunction(spec) or not _is_for_one(name)):
        return "only a synchronous hook of a one-plugin slot can be wrapped"
    if not options["wrapper"] and (options["tryfirst"] or options["trylast"]):
        return "plugins are called in the order of selection; tryfirst and trylast are for wrappers"
    owner = next((key for key, hooks in SLOT_HOOKS.items() if name in hooks), "")
    if owner and owner != slot and not options["wrapper"]:
        return f"the hook belongs to {owner} plugins, and this is one for {slot}"
    places = [process for process, hooks in CALLED_IN.items() if name in hooks]
    if not any(slot in PROCESSES[process] for process in places):
        where = " and the ".join(places)
        return f"it would never be called: {name} is called in the {where} process, where no {slot} plugin is; observers are"
    return ""


def _call_fault(name: str, function: Any, options: dict[str, Any]) -> str:
    spec = SPECS[name]
    if options["wrapper"]:
        if not inspect.isgeneratorfunction(function):
            return "a wrapper is a generator that yields once, `def` with `yield`"
    elif inspect.isasyncgenfunction(function):
        return f"is an async generator; {_definition(name)}"
    elif inspect.isgeneratorfunction(function):
        return f"yields, which only a wrapper does; {_definition(name)}"
    elif inspect.iscoroutinefunction(spec) != inspect.iscoroutinefunction(function):
        wrong = "async def" if inspect.iscoroutinefunction(function) else "def"
        return f"is written with `{wrong}`; {_definition(name)}"
    first, *parameters = inspect.signature(function).parameters.values() or (None,)
    if first is None or first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
        return f"has no self; {_definition(name)}"
    for parameter in parameters:
        if fault := _parameter_fault(parameter, list(inspect.signature(spec).parameters)):
            return f"{fault}; {_definition(name)}"
    return ""


def _parameter_fault(parameter: inspect.Parameter, names: list[str]) -> str:
    shown = str(parameter.replace(annotation=parameter.empty))
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        return f"takes {shown}, but hooks name their arguments"
    if parameter.kind is parameter.POSITIONAL_ONLY:
        return f"takes {parameter.name!r} by position only"
    if parameter.kind is parameter.KEYWORD_ONLY:
        return f"takes {parameter.name!r} by keyword only"
    if parameter.name not in names:
        near = difflib.get_close_matches(parameter.name, names, n=1)
        return f"there is no argument {parameter.name!r}" + (f"; did its author mean {near[0]!r}?" if near else "")
    if parameter.default is not parameter.empty:
        return f"{parameter.name!r} has a default, but core always gives it"
    return ""


# What a class has ---------------------------------------------------------------------------------------------------------


def _implementation(member: Any) -> tuple[Any, dict[str, Any] | None]:
    """The function in a class's attribute and the options of its mark, also where a descriptor is around it; None without a mark."""
    inner = [member]
    if isinstance(member, property):
        inner += [member.fget]
    elif isinstance(member, staticmethod | classmethod):
        inner += [member.__func__]
    elif isinstance(member, functools.cached_property | functools.partialmethod):
        inner += [member.func]
    function = next((one for one in reversed(inner) if inspect.isfunction(one)), member)
    for one in inner:
        options = getattr(one, "asyncrl_impl", None)
        if isinstance(options, dict):
            defaults = dict.fromkeys(("wrapper", "hookwrapper", "optionalhook", "tryfirst", "trylast", "specname"))
            return function, {**defaults, **options}
    return function, None


def _marked(kind: type[Plugin]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in dir(kind):
        _, options = _implementation(inspect.getattr_static(kind, name))
        if options is not None:
            yield name, options


def _unmarked(kind: type[Plugin]) -> Iterator[tuple[str, Any]]:
    """Public methods of the author's own without a mark."""
    for name in dir(kind):
        member = inspect.getattr_static(kind, name)
        function, options = _implementation(member)
        if options is None and not name.startswith("_") and inspect.isfunction(function) and not hasattr(Plugin, name):
            yield name, function


def _is_for_one(hook: str) -> bool:
    """Whether exactly one plugin implements the hook, and its answer counts."""
    return bool(vars(SPECS[hook])["asyncrl_spec"]["firstresult"])


def _may_be_anyones(hook: str) -> bool:
    return hook in ANY_PLUGIN_HOOKS or hook.startswith("on_")


def _definition(name: str) -> str:
    spec = SPECS[name]
    keyword = "async def" if inspect.iscoroutinefunction(spec) else "def"
    return f"right is `{keyword} {name}({', '.join(['self', *inspect.signature(spec).parameters])})`, or fewer arguments"


def place_of(kind: type) -> str:
    """``NAME at FILE:LINE`` of a class; less where its source can't be found."""
    try:
        return f"{kind.__qualname__} at {inspect.getfile(kind)}:{inspect.findsource(kind)[1] + 1}"
    except (OSError, TypeError, ValueError, SyntaxError):  # made by a call, or its file has changed
        file = getattr(sys.modules.get(kind.__module__), "__file__", None)
        return f"{kind.__qualname__} at {file}" if file else kind.__qualname__


def _place(function: Any) -> str:
    """`` at FILE:LINE``; empty for what is no Python function."""
    code = getattr(inspect.unwrap(function) if callable(function) else function, "__code__", None)
    return f" at {code.co_filename}:{code.co_firstlineno}" if code is not None else ""

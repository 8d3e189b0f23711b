"""`asyncrl complete WORD…`, which shells ask for what the last word may become, one line each. Imports no plugin.

The script of `asyncrl completion SHELL` calls it. Where it says nothing, the shell offers files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Literal, get_args, get_origin

from asyncrl.errors import AsyncrlError
from asyncrl.plugins import SLOTS, Catalog, Found, discover

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

SHELLS = ("bash", "zsh", "fish")


def run(arguments: Sequence[str]) -> int:
    """Print what the last argument may become. Returns 0 whatever was written: completion is no place for errors."""
    try:
        found = candidates(list(arguments))
    except AsyncrlError:
        found = []
    if found:
        print("\n".join(found))
    return 0


def candidates(words: Sequence[str]) -> list[str]:
    """Return the words that may stand in place of the last of `words`, the arguments after ``asyncrl`` so far."""
    from asyncrl.cli.main import COMMANDS

    *before, word = words or [""]
    if not before:
        return _beginning(word, [*COMMANDS, "--help", "--version"])
    command, *rest = before
    if command == "plugins":
        return _beginning(word, _of_plugins(rest, word, discover()))
    if command == "completion":
        return _beginning(word, SHELLS if not rest else ())
    if command not in COMMANDS:
        return []
    if word.startswith("--") and "=" in word:
        flag, _, value = word.partition("=")
        return [
            f"{flag}={found}" for found in _values(flag[2:], value, discover()) or _beginning(value, _switch_values(flag[2:]))
        ]
    if rest and rest[-1].startswith("--") and "=" not in rest[-1] and not word.startswith("-"):
        return _values(rest[-1][2:], word, discover())
    return _beginning(word, _flags(command)) if word.startswith("-") else []


def _beginning(word: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(word)]


# Commands with options ------------------------------------------------------------------------------------------------------


def _flags(command: str) -> list[str]:
    """Flags of core, the slots and the command. Those of plugins are not known without importing them."""
    from asyncrl.fields import is_switch
    from asyncrl.run_options import RunOptions

    module = import_module(f"asyncrl.cli.{command}")
    own, slots = getattr(module, "OWN_FLAGS", ()), getattr(module, "USES", SLOTS)
    fields = dict(RunOptions.model_fields)
    if command == "simulate":
        from asyncrl.run_file import SIMULATE
        from asyncrl.simulation.options import SimulateOptions

        fields |= {f"{SIMULATE}.{name}": info for name, info in SimulateOptions.model_fields.items()}
    spelled = {name.replace("_", "-"): info for name, info in fields.items()}
    negated = [f"--no-{name}" for name, info in spelled.items() if is_switch(info)]
    return ["--help", *(f"--{name}" for name in (*own, *slots, *spelled)), *negated]


def _values(flag: str, word: str, catalog: Catalog) -> list[str]:
    """What may follow a flag; nothing where it is a file, a number, text, or nothing at all."""
    if flag in SLOTS:
        names = _names(catalog.of(flag), catalog)
        if not SLOTS[flag].many:
            return _beginning(word, names)
        done, comma, last = word.rpartition(",")
        return [f"{done}{comma}{name}" for name in _beginning(last, names) if name not in done.split(",")]
    info = _core_option(flag)
    kinds = [info.annotation, *get_args(info.annotation)] if info else []
    return _beginning(word, [str(choice) for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)])


def _switch_values(flag: str) -> tuple[str, ...]:
    """They follow a switch only behind ``=``: without, the next word is more likely the run's file."""
    info = _core_option(flag)
    return ("true", "false") if info and info.annotation is bool else ()


def _core_option(flag: str) -> FieldInfo | None:
    from asyncrl.run_options import RunOptions

    return RunOptions.model_fields.get(flag.replace("-", "_"))


def _names(plugins: Iterable[Found], catalog: Catalog) -> list[str]:
    """The names of plugins, each as it must be written."""
    ambiguous = catalog.ambiguous()
    spelled = (f"{one.distribution}:{one.name}" if (one.slot, one.name) in ambiguous else one.name for one in plugins)
    return list(dict.fromkeys(spelled))


# asyncrl plugins ------------------------------------------------------------------------------------------------------------


def _of_plugins(before: Sequence[str], word: str, catalog: Catalog) -> list[str]:
    from asyncrl.cli.plugins import flags_of

    if not before:
        return [*flags_of(), "--help"]
    command, *rest = before
    if word.startswith("-"):
        return flags_of().get(command, [])
    if rest and rest[-1] in ("--path", "--set", "--declare", "--timeout", "--jobs", "-k"):
        return []
    named = [one for one in rest if not one.startswith("-")]
    if command == "new":
        return [] if named else list(SLOTS)
    if command == "check" or (command in ("info", "test") and not named):
        names = _names(catalog.plugins, catalog)
        return [
            name for name in [*names, *(f"{one.slot}:{one.name}" for one in catalog.plugins)] if ":" not in name or ":" in word
        ]
    return []

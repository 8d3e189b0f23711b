"""A run's TOML file taken apart: core's options, plugins and their options, and those of a simulation, each with its origin."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asyncrl.errors import OptionError
from asyncrl.plugins import SLOTS

SIMULATE = "simulate"
"""The table that only `asyncrl simulate` uses."""


@dataclass(frozen=True)
class Given:
    """One value that somebody wrote.

    Attributes:
        value: JSON data from a file; from flags a list with each time's text (True or False for a switch without one).
        origin: where it was written, such as ``run.toml: buffer.capacity_factor`` or ``--buffer.capacity-factor``.
        base: directory to which relative paths in it refer.
        text: whether it comes from flags.
    """

    value: Any
    origin: str
    base: Path
    text: bool = False


@dataclass(frozen=True)
class Choice:
    """One selected plugin as it was written. `wanted` is ``name`` or ``distribution:name``; '' means the slot's default."""

    wanted: str
    origin: str
    options: Mapping[str, Given] = field(default_factory=dict)


@dataclass(frozen=True)
class RunFile:
    """What a file says. A slot that is missing in `choices` was not mentioned; `unknown` are keys at the top that mean nothing."""

    core: Mapping[str, Given] = field(default_factory=dict)
    choices: Mapping[str, tuple[Choice, ...]] = field(default_factory=dict)
    simulate: Mapping[str, Given] = field(default_factory=dict)
    unknown: tuple[Given, ...] = ()


def read_run_file(path: Path, core_options: Mapping[str, Any]) -> RunFile:
    """Read a run's file.

    Raises:
        OptionError: it can't be read, is no TOML, or a slot is not written as a table.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))  # some editors begin a file with a mark
    except FileNotFoundError:
        remedy = "the one argument without a flag is the run's file"
        raise OptionError("there is no such file", origin=str(path), remedy=remedy) from None
    except OSError as cause:
        raise OptionError(f"can't be read: {cause.strerror}", origin=str(path)) from cause
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as cause:
        raise OptionError(f"is no TOML: {cause}", origin=str(path)) from cause
    base = path.absolute().parent
    core: dict[str, Given] = {}
    choices: dict[str, tuple[Choice, ...]] = {}
    simulate: dict[str, Given] = {}
    unknown: list[Given] = []
    for key, value in content.items():
        given = Given(value, f"{path}: {key}", base)
        if key in core_options:
            core[key] = given
        elif key in SLOTS:
            choices[key] = tuple(_many(key, given) if SLOTS[key].many else _one(given))
        elif key == SIMULATE:
            simulate = _table(given, "its options below it")
        else:
            unknown.append(given)
    return RunFile(core, choices, simulate, tuple(unknown))


def _table(given: Given, remedy: str) -> dict[str, Given]:
    if not isinstance(given.value, dict):
        key = given.origin.rpartition(": ")[2]
        raise OptionError(f"{given.value!r} is no table", origin=given.origin, remedy=f"write [{key}] and {remedy}")
    return {key: Given(value, f"{given.origin}.{key}", given.base) for key, value in given.value.items()}


def _one(given: Given) -> Iterator[Choice]:
    options = _table(given, 'below it name = "…"')
    name = options.pop("name", Given("", given.origin, given.base))
    if not isinstance(name.value, str):
        raise OptionError(f"got {name.value!r}, wants the name of a plugin", origin=name.origin)
    yield Choice(name.value, name.origin, options)


def _many(slot: str, given: Given) -> Iterator[Choice]:
    if not isinstance(given.value, dict):
        raise OptionError(
            f"{given.value!r} is no table", origin=given.origin, remedy=f"write a table [{slot}.NAME] for each, [{slot}] for none"
        )
    for name, options in given.value.items():
        origin = f"{given.origin}.{name}"
        if not isinstance(options, dict):
            raise OptionError(f"{options!r} is no table", origin=origin, remedy=f"the plugin's options go into [{slot}.{name}]")
        yield Choice(name, origin, {key: Given(value, f"{origin}.{key}", given.base) for key, value in options.items()})

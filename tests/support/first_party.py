"""The first-party plugins as their entry points offer them, and which settings of their options tests try."""

from __future__ import annotations

import tomllib
from functools import cache
from itertools import product
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import pytest
from asyncrl.plugins import SLOTS, Found, discover, load

PLUGINS = Path(__file__).parents[2] / "plugins"
VALUES: dict[str, tuple[Any, ...]] = {"capacity_factor": (1.0, 1.5, 3.0), "max_staleness": (0, 1, 2, 3, 4)}
"""What is tried for each option whose type does not say it. Switches and choices are tried in full without being listed."""


def distributions(slot: str) -> set[str]:
    """Distributions that the folder of a slot holds, installed or not."""
    folder = PLUGINS / SLOTS[slot].group.removeprefix("asyncrl.")
    return {tomllib.loads(file.read_text())["project"]["name"] for file in folder.glob("*/pyproject.toml")}


def first_party(slot: str) -> dict[str, Found]:
    """Those that are installed, by name."""
    ours = distributions(slot)
    return {found.name: found for found in discover().of(slot) if found.distribution in ours}


@cache
def settings_of(found: Found) -> list[dict[str, Any]]:
    """Every setting of a plugin's options that is to be tried."""
    fields = load(found).Options.model_fields
    return [
        dict(zip(fields, values, strict=True))
        for values in product(*(values_of(found, name, info.annotation) for name, info in fields.items()))
    ]


def values_of(found: Found, option: str, kind: Any) -> tuple[Any, ...]:
    if option in VALUES:
        return VALUES[option]
    if kind is bool:
        return (False, True)
    if kind is NoneType:
        return (None,)
    if get_origin(kind) is Literal:
        return get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        return tuple(value for part in get_args(kind) for value in values_of(found, option, part))
    pytest.fail(f"{found} has the option {option}: say in VALUES of {Path(__file__)} which values shall be tried", pytrace=False)


def choices(found: Found) -> list[dict[str, Any]]:
    """Those settings in which only switches and choices differ."""
    return [each for each in settings_of(found) if all(each[option] == VALUES[option][0] for option in each.keys() & VALUES)]

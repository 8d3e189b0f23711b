"""The plugins of this repository, whatever else is installed."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

from asyncrl.authoring import Plugin
from asyncrl.plugins import Catalog, Found, discover, load, normalized

ROOT = Path(__file__).resolve().parents[2]


@cache
def folders() -> dict[str, Path]:
    """Return the folder of each first-party plugin's distribution, by its name."""
    found = {}
    for path in sorted(ROOT.glob("plugins/*/*/pyproject.toml")):
        found[normalized(tomllib.loads(path.read_text())["project"]["name"])] = path.parent
    return found


@cache
def catalog() -> Catalog:
    """Return what is installed of this repository, in the order of slots and names."""
    return Catalog(tuple(found for found in discover().plugins if normalized(found.distribution) in folders()))


@cache
def loaded() -> tuple[tuple[Found, type[Plugin]], ...]:
    return tuple((found, load(found)) for found in catalog().plugins)

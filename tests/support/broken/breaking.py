"""How a broken plugin says which rule it breaks, and what its author's suite declares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, TypeVar

K = TypeVar("K", bound=type)


@dataclass(frozen=True)
class Broken:
    """A plugin as its entry point names it; its suite, with the attributes `declared`, fails exactly `rule`, or nothing for ''."""

    target: str
    rule: str
    declared: Mapping[str, Any] = field(default_factory=dict)


def breaks(rule: str, **declared: Any) -> Callable[[K], K]:
    """Mark a plugin class."""

    def mark(kind: K) -> K:
        kind.breaks = Broken(f"{kind.__module__}:{kind.__name__}", rule, declared)
        return kind

    return mark


def marked(module: str) -> dict[str, Broken]:
    """The marked plugins of a module of this package by class, with what it lists in ``ELSEWHERE``."""
    members = vars(import_module(f"broken.{module}"))
    own = {name: kind.breaks for name, kind in members.items() if isinstance(kind, type) and "breaks" in vars(kind)}
    return own | members.get("ELSEWHERE", {})

"""Conformance suites for plugin authors: derive from the suite of your slot, name your plugin, and run pytest.

    from asyncrl.testing import BufferSuite

    class TestMine(BufferSuite):
        plugin = "mine"

Needs `pip install asyncrl-core[testing]` (pytest and hypothesis). No fixture, no conftest.py and no pytest plugin is involved.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncrl.testing.base import BaseSuite

_SUITES = {
    "task": ("TaskSuite", "task"),
    "producer": ("ProducerSuite", "producer"),
    "scheduler": ("SchedulerSuite", "scheduler"),
    "buffer": ("BufferSuite", "buffer"),
    "filters": ("FilterSuite", "filters"),
    "staleness": ("StalenessSuite", "staleness"),
    "engine": ("EngineSuite", "engine"),
    "trainer": ("TrainerSuite", "trainer"),
    "eval": ("EvalSuite", "eval"),
    "loggers": ("LoggerSuite", "logger"),
    "observers": ("ObserverSuite", "observer"),
}
"""Suite of each slot and the module that has it."""

_MODULES = {"BaseSuite": "base", **{name: module for name, module in _SUITES.values()}}

__all__ = ["SUITES", *_MODULES]


def __getattr__(name: str) -> Any:
    if name == "SUITES":
        return {slot: __getattr__(suite) for slot, (suite, _) in _SUITES.items()}
    if name not in _MODULES:
        raise AttributeError(f"module 'asyncrl.testing' has no attribute {name!r}")
    try:
        return getattr(import_module(f"asyncrl.testing.{_MODULES[name]}"), name)
    except ModuleNotFoundError as cause:
        if cause.name in ("pytest", "hypothesis"):
            raise ModuleNotFoundError(
                f"asyncrl.testing needs {cause.name}: pip install 'asyncrl-core[testing]'", name=cause.name
            ) from cause
        raise


if TYPE_CHECKING:
    SUITES: dict[str, type[BaseSuite]]

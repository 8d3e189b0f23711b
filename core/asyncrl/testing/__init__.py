"""Conformance suites for plugin authors: derive from the suite of your slot, name your plugin, and run pytest.

    from asyncrl.testing import BufferSuite

    class TestMine(BufferSuite):
        plugin = "mine"

Needs `pip install asyncrl-core[testing]` (pytest and hypothesis). No fixture, no conftest.py and no pytest plugin is involved.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names for type checkers, which don't run `__getattr__`
    from asyncrl.testing.base import BaseSuite as BaseSuite
    from asyncrl.testing.buffer import BufferSuite as BufferSuite
    from asyncrl.testing.engine import EngineSuite as EngineSuite
    from asyncrl.testing.eval import EvalSuite as EvalSuite
    from asyncrl.testing.filters import FilterSuite as FilterSuite
    from asyncrl.testing.logger import LoggerSuite as LoggerSuite
    from asyncrl.testing.observer import ObserverSuite as ObserverSuite
    from asyncrl.testing.producer import ProducerSuite as ProducerSuite
    from asyncrl.testing.scheduler import SchedulerSuite as SchedulerSuite
    from asyncrl.testing.staleness import StalenessSuite as StalenessSuite
    from asyncrl.testing.task import TaskSuite as TaskSuite
    from asyncrl.testing.trainer import TrainerSuite as TrainerSuite

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

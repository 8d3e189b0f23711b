"""The plugin keeps the contract of its slot, with each of its scorers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from asyncrl.testing import TaskSuite

SUMS = Path(__file__).with_name("sums.jsonl")


class TestExact(TaskSuite):
    plugin = "jsonl"
    options: ClassVar[Mapping[str, Any]] = {"path": SUMS, "eval": {"sums": SUMS}}


class TestMath(TaskSuite):
    plugin = "jsonl"
    options: ClassVar[Mapping[str, Any]] = {"path": SUMS, "eval": {"sums": SUMS}, "scorer": "math", "scoring_timeout": 1.0}


class TestRegex(TaskSuite):
    plugin = "jsonl"
    options: ClassVar[Mapping[str, Any]] = {"path": SUMS, "scorer": "regex", "pattern": r"([0-9]+)*!", "scoring_timeout": 1.0}

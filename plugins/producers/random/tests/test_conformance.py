"""Both plugins keep the contracts of their slots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from asyncrl.testing import ProducerSuite, TaskSuite


class TestRandomProducer(ProducerSuite):
    plugin = "random"


class TestRandomTask(TaskSuite):
    plugin = "random"
    options: ClassVar[Mapping[str, Any]] = {"num_eval": 4, "mean": 16}

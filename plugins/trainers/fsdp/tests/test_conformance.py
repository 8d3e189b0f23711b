"""The plugin keeps the contract of its slot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from asyncrl.testing import TrainerSuite


class TestFsdp(TrainerSuite):
    plugin = "fsdp"
    options: ClassVar[Mapping[str, Any]] = {"learning_rate": 1e-4, "old_policy": "engine"}

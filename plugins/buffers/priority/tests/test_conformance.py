"""The plugin keeps the contract of its slot, in each of its orders, waiting or evicting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from asyncrl.testing import BufferSuite

OTHERS = "only with when_full = evict, or with order = score"


class TestFreshest(BufferSuite):
    plugin = "priority"
    order = "freshest"
    variants = ({"when_full": "evict"}, {"order": "score"})


class TestOldest(BufferSuite):
    plugin = "priority"
    options: ClassVar[Mapping[str, Any]] = {"order": "oldest"}
    order = "oldest"
    rare_metrics: ClassVar[Mapping[str, str]] = {"evicted": OTHERS, "score": OTHERS}


class TestScoreEvicting(BufferSuite):
    plugin = "priority"
    options: ClassVar[Mapping[str, Any]] = {"order": "score", "when_full": "evict"}
    order = "score"
    evicts = True

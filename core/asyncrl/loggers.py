"""What a logger plugin is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.metrics import Axis, Declared


@dataclass(frozen=True)
class RunHeader:
    """The run as a logger sees it at its start; `options` is free of secrets."""

    name: str
    directory: Path
    steps: int
    options: Mapping[str, Any]
    metrics: tuple[Declared, ...]


@dataclass(frozen=True)
class MetricRecord:
    """Values of one axis at one of its steps. `time` is seconds since the epoch."""

    axis: Axis
    step: float
    time: float
    values: Mapping[str, float]

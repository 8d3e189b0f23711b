"""What a logger plugin is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.metrics import Axis, Declared


@dataclass(frozen=True)
class RunHeader:
    """The run as a logger sees it at its start; `options` is free of secrets.

    `resumed_step` is -1, or the step after which a run goes on: what a logger has written of later steps is told again, so it drops that
    or leaves out the second. It keeps eval points of earlier steps, and weight versions and wall times that came with them.
    """

    name: str
    directory: Path
    steps: int
    options: Mapping[str, Any]
    metrics: tuple[Declared, ...]
    resumed_step: int = -1


@dataclass(frozen=True)
class MetricRecord:
    """Values of one axis at one of its steps. `time` is seconds since the epoch."""

    axis: Axis
    step: float
    time: float
    values: Mapping[str, float]

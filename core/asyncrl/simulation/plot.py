"""Draws what simulated runs measured: step time and staleness of each variant. Needs matplotlib, the extra `plot`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncrl.errors import OptionError
from asyncrl.simulation.report import Outcome, bound_limit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".png", ".svg", ".pdf")
ORIGIN = "--plot"


def check_plot(path: Path) -> None:
    """Refuse before anything is simulated what could not be drawn after it.

    Raises:
        OptionError: the suffix is none of `SUFFIXES`, the file can't be written, or matplotlib is missing.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise OptionError(f"{str(path)!r} has no known suffix", origin=ORIGIN, remedy=f"use {', '.join(SUFFIXES)}")
    if os.path.isdir(path) or not os.path.isdir(path.absolute().parent):
        raise OptionError(f"{str(path)!r} is a directory, or in one that does not exist", origin=ORIGIN)
    if find_spec("matplotlib") is None:
        raise OptionError("matplotlib is not installed", origin=ORIGIN, remedy="pip install 'asyncrl[plot]'")
    try:
        _try_to_write(path)
    except OSError as cause:
        raise OptionError(f"{str(path)!r} can't be written: {cause.strerror}", origin=ORIGIN) from cause


def _try_to_write(path: Path) -> None:
    """Open the file as `draw` will, which no look at permissions can stand for, and leave everything as it was."""
    there = path.exists()
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK))  # a pipe that nobody reads must not be waited for
    if not there:
        path.resolve().unlink()  # a link that led nowhere stays


def draw(outcomes: Sequence[Outcome], path: Path) -> None:
    """Write the figure: step time and staleness of every variant, and both in detail.

    Raises:
        OptionError: the file can't be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7.5), layout="constrained")
    axes = figure.subplots(2, 2)
    _step_times(axes[0][0], outcomes)
    _steps(axes[0][1], outcomes)
    _busy(axes[1][0], outcomes)
    _staleness(axes[1][1], outcomes)
    metadata: dict[str, Any] = {"Date": None} if path.suffix.lower() == ".svg" else {}
    try:
        figure.savefig(path, metadata=metadata)
    except OSError as cause:
        raise OptionError(f"{str(path)!r} can't be written: {cause.strerror}", origin=ORIGIN) from cause


def _labels(outcomes: Sequence[Outcome]) -> list[str]:
    return [outcome.variant.label or "run" for outcome in outcomes]


def _step_times(axes: Axes, outcomes: Sequence[Outcome]) -> None:
    """Mean step time over the limit, and the limit that a bound sets."""
    places = range(len(outcomes))
    values = [outcome.measured.over_limit for outcome in outcomes]
    bars = axes.bar(places, values, color="tab:blue")
    axes.bar_label(bars, [f"{value:.3f}" for value in values], padding=2, fontsize="small")
    axes.axhline(1.0, color="black", linewidth=0.8)
    bounds = [
        (place, least / outcome.measured.limit)
        for place, outcome in enumerate(outcomes)
        if (least := bound_limit(outcome.scenario, outcome.measured)) and outcome.measured.limit
    ]
    if bounds:
        axes.plot(*zip(*bounds, strict=True), "_", color="tab:red", markersize=24, label="limit of the bound")
        axes.legend(fontsize="small")
    axes.set_xticks(places, _labels(outcomes), fontsize="small", rotation=20 if len(outcomes) > 4 else 0)
    axes.margins(y=0.15)
    axes.set_title("mean step time / max(generation, training)")


def _steps(axes: Axes, outcomes: Sequence[Outcome]) -> None:
    for label, outcome in zip(_labels(outcomes), outcomes, strict=True):
        measured = outcome.measured
        first = measured.warmup_steps + 1
        axes.plot(range(first, first + len(measured.step_seconds)), measured.step_seconds, linewidth=1, label=label)
    axes.margins(y=0.2)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("step")
    axes.set_ylabel("virtual seconds")
    axes.set_title("step time")
    axes.legend(fontsize="small")


def _busy(axes: Axes, outcomes: Sequence[Outcome]) -> None:
    """Share of time that slots and trainer are busy."""
    for offset, name, values in (
        (-0.2, "engine slots", [outcome.measured.slots_busy for outcome in outcomes]),
        (0.2, "trainer", [outcome.measured.trainer_busy for outcome in outcomes]),
    ):
        axes.bar([place + offset for place in range(len(outcomes))], values, 0.4, label=name)
    axes.set_xticks(range(len(outcomes)), _labels(outcomes), fontsize="small", rotation=20 if len(outcomes) > 4 else 0)
    axes.set_ylim(0, 1.05)
    axes.set_title("share of time busy")
    axes.legend(fontsize="small", loc="lower right")


def _staleness(axes: Axes, outcomes: Sequence[Outcome]) -> None:
    """Share of the trained groups by staleness, one line a variant."""
    for label, outcome in zip(_labels(outcomes), outcomes, strict=True):
        counts = outcome.measured.staleness
        total = sum(counts.values()) or 1
        ages = range(max(counts, default=0) + 1)
        text = f"{label}: mean {outcome.measured.staleness_mean:.2f}, max {outcome.measured.staleness_max}"
        axes.plot(ages, [counts.get(age, 0) / total for age in ages], "o-", markersize=3, linewidth=1, label=text)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("staleness in versions")
    axes.set_ylabel("share of trained groups")
    axes.set_title("staleness")
    axes.legend(fontsize="small")

"""Installed distributions made by hand: a `.dist-info` folder on a path is all that discovery sees."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

BUFFER_HOOKS = """\
    @hookimpl
    def buffer_put(self, group): return ACCEPTED
    @hookimpl
    def buffer_take(self, version): return NOTHING
    @hookimpl
    def buffer_size(self): return 0
    @hookimpl
    def buffer_state(self): return State(())
    @hookimpl
    def buffer_restore(self, state): return Restored()
"""
"""The body of the smallest buffer plugin that loads; it keeps nothing."""

TOYS: dict[str, dict[str, str]] = {
    "asyncrl.tasks": {"sort-digits": "toy_plugins:ToyTask", "from-file": "toy_plugins:FileTask"},
    "asyncrl.producers": {"single-turn": "toy_plugins:ToyProducer"},
    "asyncrl.schedulers": {"sample": "toy_plugins:ToyScheduler", "lockstep": "toy_plugins:ToyLockstep"},
    "asyncrl.buffers": {"fifo": "toy_plugins:ToyBuffer", "priority": "toy_plugins:ToyPriority"},
    "asyncrl.filters": {"reward-variance": "toy_plugins:ToyFilter", "length": "toy_plugins:ToyFilter"},
    "asyncrl.staleness": {"none": "toy_plugins:ToyStaleness"},
    "asyncrl.engines": {"torch": "toy_plugins:ToyEngine"},
    "asyncrl.trainers": {"fsdp": "toy_plugins:ToyTrainer"},
    "asyncrl.evals": {"shared": "toy_plugins:ToyEval"},
    "asyncrl.loggers": {"console": "toy_plugins:ToyLogger", "jsonl": "toy_plugins:ToyLogger"},
}
"""One plugin for every slot's defaults and some more, all of them real classes."""


def install(
    folder: Path,
    name: str,
    entry_points: Mapping[str, Mapping[str, str]],
    *,
    version: str = "1.0",
    modules: Mapping[str, str] | None = None,
    kind: str = "dist-info",
) -> Path:
    """Put a distribution's metadata, and the source of its modules, into `folder`; returns the metadata folder."""
    stem = name.replace("-", "_")
    place = folder / (f"{stem}-{version}.dist-info" if kind == "dist-info" else f"{stem}.egg-info")
    place.mkdir(parents=True, exist_ok=True)
    about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: What {name} does.\n"
    (place / ("METADATA" if kind == "dist-info" else "PKG-INFO")).write_text(about)
    lines = []
    for group, names in entry_points.items():
        lines += [f"[{group}]", *(f"{entry} = {target}" for entry, target in names.items())]
    (place / "entry_points.txt").write_text("\n".join(lines) + "\n")
    for module, source in (modules or {}).items():
        (folder / f"{module}.py").write_text(source)
    return place


def install_toys(folder: Path) -> None:
    install(folder, "toys", TOYS)

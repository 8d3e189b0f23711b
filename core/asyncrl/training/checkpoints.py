"""Checkpoints of the run: `checkpoints/step-N/` appears whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

from asyncrl.errors import CheckpointError
from asyncrl.training.interfaces import Exported


class Saves(Protocol):
    async def save(self, directory: Path) -> None: ...

    async def export(self, directory: Path) -> Exported: ...


class RunCheckpoints:
    """Writes a checkpoint every `interval` steps (0: none) and after the last step.

    A checkpoint holds `trainer/` (sharded model and optimizer state), `model/` (a Hugging Face directory) and `run.json` (step, version,
    ledger). It is written beside its place, synced and renamed; the newest `keep` are kept.

    Args:
        run_state: returns what `run.json` holds beside the step.
        on_saved: told of each finished checkpoint.
    """

    def __init__(
        self,
        directory: Path,
        *,
        interval: int,
        keep: int,
        trainer: Saves,
        run_state: Callable[[], Awaitable[dict[str, Any]]],
        on_saved: Callable[[int, Path], None],
    ) -> None:
        self._directory = directory
        self._interval = interval
        self._keep = keep
        self._trainer = trainer
        self._run_state = run_state
        self._on_saved = on_saved

    async def after_step(self, step: int, *, last: bool) -> None:
        """Save if this step is due. Raises `CheckpointError` when it can't be written; nothing half-written is left."""
        if last or (self._interval and step % self._interval == 0):
            await self.save(step)

    async def save(self, step: int) -> None:
        place = self._directory / f"step-{step}"
        growing = self._directory / f".step-{step}.partial"
        try:
            shutil.rmtree(growing, ignore_errors=True)
            growing.mkdir(parents=True)
            await self._trainer.save(growing / "trainer")
            await self._trainer.export(growing / "model")
            (growing / "run.json").write_text(json.dumps({"step": step, **await self._run_state()}))
            _sync(growing)
            growing.rename(place)
        except OSError as cause:
            raise CheckpointError(f"checkpoint of step {step} in {place}: {cause.strerror or cause}") from cause
        finally:
            shutil.rmtree(growing, ignore_errors=True)
        self._on_saved(step, place)
        self._retire()

    def _retire(self) -> None:
        steps = sorted(int(path.name.removeprefix("step-")) for path in self._directory.glob("step-*"))
        for step in steps[: -self._keep] if self._keep else []:
            shutil.rmtree(self._directory / f"step-{step}", ignore_errors=True)


def _sync(directory: Path) -> None:
    for path in [*directory.rglob("*"), directory]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

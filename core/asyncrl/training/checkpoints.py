"""When the run is saved: `checkpoints/step-N/` appears whole or not at all, and the newest few are kept."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from numpy.typing import NDArray

from asyncrl.errors import CheckpointError
from asyncrl.training.interfaces import Exported
from asyncrl.training.stored import seal, steps_in, sync, write_state

RunState: TypeAlias = Callable[[], Awaitable[tuple[dict[str, Any], dict[str, NDArray[Any]]]]]


class Saves(Protocol):
    async def save(self, directory: Path) -> None: ...

    async def export(self, directory: Path) -> Exported: ...


class RunCheckpoints:
    """Writes a checkpoint every `interval` steps (0: none) and after the last step.

    A checkpoint holds `trainer/` (sharded model and optimizer state), `model/` (a Hugging Face directory), `run.json` (everything else but
    arrays), `rollout.npz` (the finished groups that wait) and `manifest.json` (by which a torn one is recognised). It is
    written beside its place, synced and renamed; the newest `keep` are kept.

    Args:
        run_state: returns what `run.json` holds beside the step and the digest of the model, and the arrays of `rollout.npz`.
        on_saved: told of each finished checkpoint.
        in_use: returns the steps whose checkpoints are still to be evaluated; they are kept until `retire` is called again.
    """

    def __init__(
        self,
        directory: Path,
        *,
        interval: int,
        keep: int,
        trainer: Saves,
        run_state: RunState,
        on_saved: Callable[[int, Path], None],
        in_use: Callable[[], Collection[int]] = frozenset,
    ) -> None:
        self._directory = directory
        self._interval = interval
        self._keep = keep
        self._trainer = trainer
        self._run_state = run_state
        self._on_saved = on_saved
        self._in_use = in_use

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
            exported = await self._trainer.export(growing / "model")
            run, arrays = await self._run_state()
            await asyncio.to_thread(self._finish, growing, place, {"step": step, "digest": exported.digest, **run}, arrays)
        except OSError as cause:
            raise CheckpointError(f"checkpoint of step {step} in {place}: {cause.strerror or cause}") from cause
        finally:
            shutil.rmtree(growing, ignore_errors=True)
        self._on_saved(step, place)
        await self.retire()

    def _finish(self, growing: Path, place: Path, run: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        write_state(growing, run, arrays)
        seal(growing)
        growing.rename(place)
        sync(self._directory)

    async def retire(self) -> None:
        """Delete what is neither among the newest nor in use."""
        await asyncio.to_thread(self._retire, frozenset(self._in_use()))

    def _retire(self, in_use: frozenset[int]) -> None:
        old = steps_in(self._directory)[self._keep :] if self._keep else []
        for step in (step for step in old if step not in in_use):
            shutil.rmtree(self._directory / f"step-{step}", ignore_errors=True)

"""Where the weights of an eval point lie: nowhere (the engines have them), exported for it, or in a checkpoint of the run.

What was exported is removed again, and nothing else ever is: a snapshot is a directory `step-N` in the run's own staging directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from asyncrl.evaluation.records import Checkpoint
from asyncrl.training.interfaces import Exported

STAGING = "asyncrl-evals-"
"""How the name of a run's own staging directory begins; the run's id follows."""
SNAPSHOT = re.compile(r"step-\d+")


class Exports(Protocol):
    """The trainer, all ranks as one."""

    async def export(self, directory: Path) -> Exported: ...


class Snapshots:
    """None: a backend that needs no directory measures the engines, or whatever it knows of, as they are.

    Attributes:
        exports: whether `take` makes the training loop wait for an export.
    """

    exports = False

    def initial(self, version: int) -> Checkpoint:
        """Return the initial weights as a checkpoint of step 0."""
        return Checkpoint(0, version, None)

    async def take(self, step: int, version: int) -> Checkpoint:
        """Return the trainer's present weights, which are `version`. Raises whatever an export can raise; nothing half-made is left."""
        return Checkpoint(step, version, None)

    def exported(self, checkpoint: Checkpoint) -> bool:
        """Whether `take` made the directory."""
        return False

    async def settled(self, checkpoint: Checkpoint) -> None:
        """The point has its record: its snapshot, or an older one, is no longer needed."""

    def state(self) -> dict[str, Any]:
        """What a later run must know to remove what this one exported, as JSON data."""
        return {}

    async def restore(self, state: Mapping[str, Any]) -> None:
        """Remove what a dead run exported, given its `state`."""
        await _remove_exported(state, remove_tree)

    async def close(self) -> None:
        """Remove everything that was exported."""


class ReusedCheckpoints(Snapshots):
    """The model that each checkpoint of the run holds; a point comes after the checkpoint of its step.

    Args:
        directory: of the run's checkpoints.
        model: the initial model.
        released: called when a checkpoint is no longer needed for an evaluation.
        digest: returns the digest of a step's weights; '' if it is not known.
    """

    def __init__(
        self,
        directory: Path,
        model: Path,
        *,
        released: Callable[[], Awaitable[None]],
        digest: Callable[[int], str] = lambda step: "",
    ) -> None:
        self._directory = directory
        self._model = model
        self._released = released
        self._digest = digest

    def initial(self, version: int) -> Checkpoint:
        return Checkpoint(0, version, self._model, marked=False)

    async def take(self, step: int, version: int) -> Checkpoint:
        return Checkpoint(step, version, self._directory / f"step-{step}" / "model", digest=self._digest(step))

    async def settled(self, checkpoint: Checkpoint) -> None:
        await self._released()


async def remove_tree(directory: Path) -> None:
    """Remove a directory off the event loop; whatever is left of it is nobody's trouble here."""
    await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)


class ExportedSnapshots(Snapshots):
    """Exported for each point into `staging`, a directory of the run's own that is made with the first export.

    Args:
        model: the initial model, which needs no export.
        keep: how many are kept after their points were settled, until `close`.
        remove: removes a directory.
    """

    exports = True

    def __init__(
        self,
        trainer: Exports,
        staging: Path,
        model: Path,
        *,
        keep: int,
        remove: Callable[[Path], Awaitable[None]] = remove_tree,
    ) -> None:
        self._trainer = trainer
        self._staging = staging
        self._model = model
        self._keep = keep
        self._remove = remove
        self._pending: list[Path] = []
        self._kept: deque[Path] = deque()

    def initial(self, version: int) -> Checkpoint:
        return Checkpoint(0, version, self._model, marked=False)

    async def take(self, step: int, version: int) -> Checkpoint:
        directory = self._staging / f"step-{step}"
        self._staging.mkdir(parents=True, exist_ok=True)
        self._pending.append(directory)
        try:
            exported = await self._trainer.export(directory)
        except BaseException:
            await self._remove(directory)
            self._pending.remove(directory)
            raise
        return Checkpoint(step, version, directory, digest=exported.digest)

    def exported(self, checkpoint: Checkpoint) -> bool:
        return checkpoint.directory in self._pending

    async def settled(self, checkpoint: Checkpoint) -> None:
        if checkpoint.directory not in self._pending:
            return
        self._pending.remove(checkpoint.directory)
        self._kept.append(checkpoint.directory)
        while len(self._kept) > self._keep:
            await self._remove(self._kept[0])
            self._kept.popleft()

    def state(self) -> dict[str, Any]:
        return {"staging": str(self._staging), "exported": [str(path) for path in [*self._kept, *self._pending]]}

    async def restore(self, state: Mapping[str, Any]) -> None:
        await _remove_exported(state, self._remove)

    async def close(self) -> None:
        await _remove_all([*self._kept, *self._pending], self._remove)
        self._kept.clear()
        self._pending.clear()
        _remove_empty(self._staging)


async def _remove_exported(state: Mapping[str, Any], remove: Callable[[Path], Awaitable[None]]) -> None:
    """Remove what a dead run exported: what it has listed, and what it has exported into its staging directory since."""
    staging = Path(state.get("staging", ""))
    if not staging.name.startswith(STAGING):
        return
    there = list(staging.iterdir()) if staging.is_dir() and not staging.is_symlink() else []
    await _remove_all((path for path in there if SNAPSHOT.fullmatch(path.name)), remove)
    _remove_empty(staging)


async def _remove_all(directories: Iterable[Path], remove: Callable[[Path], Awaitable[None]]) -> None:
    for directory in directories:
        await remove(directory)


def _remove_empty(staging: Path) -> None:
    """Remove the staging directory, unless somebody else has put something there."""
    with contextlib.suppress(OSError):
        staging.rmdir()

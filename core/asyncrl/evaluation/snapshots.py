"""Where the weights of an eval point lie: nowhere (the engines have them), exported for it, or in a checkpoint of the run.

What was exported is removed again, and nothing else ever is: a snapshot is a directory `step-N` in a staging directory that is named
after the run and the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
import shutil
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from asyncrl.evaluation.records import Checkpoint
from asyncrl.paths import make_private
from asyncrl.training.interfaces import Exported

STAGING = "asyncrl-evals-"
"""How the names of staging directories begin."""
SNAPSHOT = re.compile(r"step-\d+")


class Exports(Protocol):
    """The trainer, all ranks as one."""

    async def export(self, directory: Path) -> Exported: ...


async def remove_tree(directory: Path) -> None:
    """Remove a directory off the event loop; whatever is left of it is nobody's trouble here."""
    await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)


def staging_directory(parent: Path, run: Path, life: str) -> Path:
    """Return the staging directory of one process of a run: known again by host and run directory, and like no other process's."""
    of_run = hashlib.sha256(f"{socket.gethostname()}:{run.absolute()}".encode()).hexdigest()[:12]
    return parent / f"{STAGING}{of_run}-{life}"


class Snapshots:
    """None: a backend that needs no directory measures the engines, or whatever it knows of, as they are.

    Args:
        staging: the process's own staging directory (see `staging_directory`); None where nothing was ever exported.
        remove: removes a directory.

    Attributes:
        exports: whether `take` makes the training loop wait for an export.
    """

    exports = False

    def __init__(self, staging: Path | None = None, remove: Callable[[Path], Awaitable[None]] = remove_tree) -> None:
        self._staging = staging
        self._remove = remove

    def initial(self, version: int) -> Checkpoint:
        """Return the initial weights as a checkpoint of step 0."""
        return Checkpoint(0, version, None)

    async def take(self, step: int, version: int) -> Checkpoint:
        """Return the trainer's present weights, which are `version`. Raises whatever an export can raise; nothing half-made is left."""
        return Checkpoint(step, version, None)

    def exported(self, checkpoint: Checkpoint) -> bool:
        """Whether `take` made the directory."""
        return False

    async def whole(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return the checkpoint once nothing more is written to its directory."""
        return checkpoint

    async def settled(self, checkpoint: Checkpoint) -> None:
        """The point has its record: its snapshot, or an older one, is no longer needed."""

    def state(self) -> dict[str, Any]:
        """What a later process must know to remove what this one exported, as JSON data."""
        return {"staging": str(self._staging or "")}

    async def restore(self, state: Mapping[str, Any]) -> None:
        """Remove what dead processes of the run exported, given the `state` of the one that wrote the checkpoint.

        Those that died before they wrote one are known by their staging directories' names.
        """
        if self._staging is None:
            return
        of_run = self._staging.name.rpartition("-")[0] + "-"
        for parent in {self._staging.parent, Path(state.get("staging") or self._staging).parent}:
            for staging in parent.glob(f"{of_run}*") if parent.is_dir() else ():
                if staging != self._staging and staging.is_dir() and not staging.is_symlink():
                    await self._remove_all(path for path in staging.iterdir() if SNAPSHOT.fullmatch(path.name))
                    _remove_empty(staging)

    async def close(self) -> None:
        """Remove everything that was exported."""

    async def _remove_all(self, directories: Iterable[Path]) -> None:
        for directory in directories:
            await self._remove(directory)


class ReusedCheckpoints(Snapshots):
    """The model that each checkpoint of the run holds; a point comes after the checkpoint of its step.

    Args:
        directory: of the run's checkpoints.
        model: the initial model.
        written: waits until the checkpoint of a step is no longer being written.
        released: called when a checkpoint is no longer needed for an evaluation.
    """

    def __init__(
        self,
        directory: Path,
        model: Path,
        *,
        written: Callable[[int], Awaitable[None]],
        released: Callable[[], Awaitable[None]],
        staging: Path | None = None,
    ) -> None:
        super().__init__(staging)
        self._directory = directory
        self._model = model
        self._written = written
        self._released = released

    def initial(self, version: int) -> Checkpoint:
        return Checkpoint(0, version, self._model, marked=False)

    async def take(self, step: int, version: int) -> Checkpoint:
        return Checkpoint(step, version, self._directory / f"step-{step}" / "model")

    async def whole(self, checkpoint: Checkpoint) -> Checkpoint:
        await self._written(checkpoint.step)
        if checkpoint.directory is None or not checkpoint.marked:
            return checkpoint
        return replace(checkpoint, digest=_stored_digest(checkpoint.directory.parent / "run.json"))

    async def settled(self, checkpoint: Checkpoint) -> None:
        await self._released()


def _stored_digest(file: Path) -> str:
    """Return the digest of the weights that the checkpoint of `file` says it has; '' if it says none."""
    try:
        return str(json.loads(file.read_text())["digest"])
    except (OSError, ValueError, LookupError, TypeError):
        return ""


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
        super().__init__(staging, remove)
        self._trainer = trainer
        self._model = model
        self._keep = keep
        self._own = staging
        self._pending: list[Path] = []
        self._kept: deque[Path] = deque()

    def initial(self, version: int) -> Checkpoint:
        return Checkpoint(0, version, self._model, marked=False)

    async def take(self, step: int, version: int) -> Checkpoint:
        directory = self._own / f"step-{step}"
        make_private(self._own, origin="staging_dir")
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

    async def close(self) -> None:
        await self._remove_all([*self._kept, *self._pending])
        self._kept.clear()
        self._pending.clear()
        _remove_empty(self._own)


def _remove_empty(staging: Path) -> None:
    """Remove the staging directory, unless somebody else has put something there."""
    with contextlib.suppress(OSError):
        staging.rmdir()

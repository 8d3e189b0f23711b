"""When the run is saved: captured between two steps, written while training goes on; `checkpoints/step-N/` appears whole or not at all."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from numpy.typing import NDArray

from asyncrl.errors import CheckpointError, TrainerLost
from asyncrl.line_file import is_full
from asyncrl.rollout.patience import Wait
from asyncrl.training.interfaces import Exported
from asyncrl.training.stored import partial, seal, steps_in, sync, write_state

log = logging.getLogger("asyncrl")

RunState: TypeAlias = Callable[[], Awaitable[tuple[dict[str, Any], dict[str, NDArray[Any]]]]]


class Saves(Protocol):
    """The trainer: `capture` between two steps, then `save` of what was captured, while it trains on."""

    async def capture(self) -> None: ...

    async def save(self, directory: Path, model: Path) -> Exported: ...


@dataclass(frozen=True)
class _Writing:
    step: int
    task: asyncio.Task[None]
    last: bool


class RunCheckpoints:
    """Saves the run every `interval` steps (0: never) and after the last step.

    A checkpoint holds `trainer/` (sharded model and optimizer state), `model/` (a Hugging Face directory), `run.json` (everything else but
    arrays), `rollout.npz` (the finished groups that wait) and `manifest.json` (by which a torn one is recognised). It is
    written beside its place, synced and renamed; the newest `keep` are kept. One is written at a time: the next one waits for it.

    Args:
        run_state: returns what `run.json` holds beside the step and the digest of the model, and the arrays of `rollout.npz`.
        on_saved: told of each complete checkpoint.
        on_failed: called when a checkpoint found no room on the disk. The run goes on with the one before, and the next one is tried;
            only the last one of a run must not fail.
        in_use: returns the steps whose checkpoints are still to be evaluated; they are kept until `retire` is called again.
        wait_warning: seconds after which a wait for a checkpoint says so, again and again.
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
        on_failed: Callable[[], None] = lambda: None,
        in_use: Callable[[], Collection[int]] = frozenset,
        wait_warning: float = 30.0,
    ) -> None:
        self._directory = directory
        self._interval = interval
        self._keep = keep
        self._trainer = trainer
        self._run_state = run_state
        self._on_saved = on_saved
        self._on_failed = on_failed
        self._in_use = in_use
        self._wait_warning = wait_warning
        self._writing: _Writing | None = None

    async def after_step(self, step: int, *, last: bool) -> None:
        """Capture the run if this step is due, once the checkpoint before is complete, and begin to write it.

        Raises:
            CheckpointError: the one before could not be written, and not for want of room; nothing of it is left.
        """
        due = last or bool(self._interval and step % self._interval == 0)
        if due or (self._writing and self._writing.task.done()):
            await self.settle()
        if due and not last and not await asyncio.to_thread(self._has_room, frozenset(self._in_use())):
            self._without(step, "the disk has not the room that the one before took")
        elif due:
            await self._trainer.capture()
            run, arrays = await self._run_state()
            task = asyncio.create_task(self._write(step, run, arrays), name=f"checkpoint of step {step}")
            self._writing = _Writing(step, task, last)

    async def settle(self) -> None:
        """Wait until the checkpoint that is being written is complete. Raises `CheckpointError` when it can't be written, unless it only
        found no room and is not the last one."""
        if self._writing is None:
            return
        await self._ended(self._writing)
        writing, self._writing = self._writing, None
        try:
            writing.task.result()
        except CheckpointError as error:
            if writing.last or not is_full(error):
                raise
            self._without(writing.step, error.message)

    async def written(self, step: int) -> None:
        """Wait until the checkpoint of `step` is no longer being written, whatever came of it."""
        if self._writing and self._writing.step == step:
            await self._ended(self._writing)

    async def abandon(self) -> None:
        """Give up the checkpoint that is being written; nothing of it is left, once its trainer's ranks have ended or let go of it."""
        if self._writing is None:
            return
        task, self._writing = self._writing.task, None
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()

    async def close(self, error: BaseException | None) -> None:
        """The run ends with `error`: finish what is being written, or give it up if the run is to end at once, or who writes is gone."""
        if isinstance(error, asyncio.CancelledError | TrainerLost):
            await self.abandon()
        try:
            await self.settle()
        except asyncio.CancelledError:
            await self.abandon()
            raise
        except Exception as failure:
            log.warning("%s", failure)

    async def retire(self) -> None:
        """Delete what is neither among the newest nor in use."""
        await asyncio.to_thread(self._retire, frozenset(self._in_use()))

    async def _write(self, step: int, run: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        place, growing = self._directory / f"step-{step}", partial(self._directory, step)
        try:
            await asyncio.to_thread(_make_anew, growing)
            exported = await self._trainer.save(growing / "trainer", growing / "model")
            await _to_the_end(self._finish, growing, place, {"step": step, "digest": exported.digest, **run}, arrays)
        except (OSError, CheckpointError) as cause:
            why = cause.message if isinstance(cause, CheckpointError) else cause.strerror or cause
            raise CheckpointError(f"checkpoint of step {step} in {place}: {why}") from cause
        finally:
            await _to_the_end(shutil.rmtree, growing, ignore_errors=True)
        self._on_saved(step, place)
        await self.retire()

    def _finish(self, growing: Path, place: Path, run: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        write_state(growing, run, arrays)
        seal(growing)
        growing.rename(place)
        sync(self._directory)

    def _without(self, step: int, why: str) -> None:
        self._on_failed()
        kept = steps_in(self._directory)
        left = f"the newest one is that of step {kept[0]}" if kept else "there is none yet"
        log.warning("there is no checkpoint of step %d: %s; the run goes on, and %s", step, why, left)

    def _has_room(self, in_use: frozenset[int]) -> bool:
        """Whether the disk has room for a checkpoint as large as the newest. If not, older ones go first, as long as one is left."""
        newest, *others = steps_in(self._directory) or [-1]
        needed = sum(path.stat().st_size for path in (self._directory / f"step-{newest}").rglob("*") if path.is_file())
        while needed and shutil.disk_usage(self._directory).free < needed:
            spare = [step for step in others if step not in in_use]
            if not spare:
                return False
            others.remove(spare[-1])
            log.warning("the checkpoint of step %d is deleted to make room for another one", spare[-1])
            shutil.rmtree(self._directory / f"step-{spare[-1]}", ignore_errors=True)
        return True

    def _retire(self, in_use: frozenset[int]) -> None:
        old = steps_in(self._directory)[self._keep :] if self._keep else []
        for step in (step for step in old if step not in in_use):
            shutil.rmtree(self._directory / f"step-{step}", ignore_errors=True)

    async def _ended(self, writing: _Writing) -> None:
        wait = Wait(
            self._wait_warning,
            lambda seconds: log.warning(
                "still waiting for the checkpoint of step %d to be written (%.0f s)", writing.step, seconds
            ),
            lambda: f"the checkpoint of step {writing.step}",
        )
        wait.begin()
        try:
            await asyncio.wait({writing.task})
        finally:
            wait.end()


def _make_anew(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)


async def _to_the_end(function: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """Run `function` in a thread; whoever is cancelled waits for its end, so that nothing touches its files meanwhile."""
    work = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait({work})
        raise

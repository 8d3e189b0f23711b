"""What evaluation needs of a run: options that cannot work are refused before anything starts; the rest becomes the dispatcher."""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

from asyncrl.authoring import Plugin
from asyncrl.errors import OptionError, ResourceError
from asyncrl.evaluation.dispatcher import EvalDispatcher
from asyncrl.evaluation.records import Checkpoint, EvalRecord, EvalResult
from asyncrl.evaluation.snapshots import ExportedSnapshots, Exports, ReusedCheckpoints, Snapshots
from asyncrl.run_options import RunOptions
from asyncrl.training.publication import check_space

Backend: TypeAlias = Plugin | type[Plugin]
"""What is asked of it is said by its class."""


def blocks(backend: Backend) -> bool:
    """Whether training waits for each point, because it is evaluated on the rollout engines."""
    return bool(getattr(backend, "uses_rollout_engines", False))


def takes_snapshots(core: RunOptions, backend: Backend) -> bool:
    """Whether points are evaluated from a directory."""
    return core.eval_interval > 0 and bool(getattr(backend, "needs_snapshot", True))


def exports_snapshots(core: RunOptions, backend: Backend) -> bool:
    """Whether that directory is exported for the point."""
    return takes_snapshots(core, backend) and core.eval_snapshots == "export"


def check_options(core: RunOptions, backend: Backend) -> None:
    """Refuse options of evaluation that contradict each other under this backend. Raises `OptionError` that names both."""
    if not takes_snapshots(core, backend):
        return
    if core.eval_interval % core.publish_interval:
        raise OptionError(
            f"eval_interval = {core.eval_interval} is no multiple of publish_interval = {core.publish_interval}: {backend.name} "
            "evaluates a version, and only a publication makes one",
            origin="eval_interval, publish_interval",
            remedy=_multiple("eval_interval", core.eval_interval, core.publish_interval),
        )
    if core.eval_snapshots == "export":
        return
    if not core.save_interval:
        raise OptionError(
            f"there is no snapshot source for {backend.name}: eval_snapshots = checkpoints with save_interval = 0, which saves only "
            "at the end",
            origin="eval_snapshots, save_interval",
            remedy="use eval_snapshots = export, or save at an interval of which eval_interval is a multiple",
        )
    if core.eval_interval % core.save_interval:
        raise OptionError(
            f"eval_interval = {core.eval_interval} is no multiple of save_interval = {core.save_interval}: with eval_snapshots = "
            "checkpoints there is nothing to evaluate at other steps",
            origin="eval_interval, save_interval",
            remedy=_multiple("eval_interval", core.eval_interval, core.save_interval) + ", or eval_snapshots = export",
        )


def check_staging(core: RunOptions, backend: Backend, model_bytes: int) -> None:
    """Refuse a staging directory in which not all snapshots that can exist at once have room. Raises `UserError` with the numbers."""
    if not exports_snapshots(core, backend):
        return
    if not core.staging_dir.is_dir():
        raise OptionError(f"{core.staging_dir} is no directory", origin="staging_dir", remedy="name one that exists")
    try:
        Path(tempfile.mkdtemp(prefix="asyncrl-probe-", dir=core.staging_dir)).rmdir()
    except OSError as cause:
        raise OptionError(
            f"nothing can be written to {core.staging_dir}: {cause.strerror}",
            origin="staging_dir",
            remedy="name another directory",
        ) from cause
    snapshots = core.eval_max_in_flight + core.keep_snapshots
    shared = core.publish_method == "disk" and _same_file_system(core.staging_dir, core.publish_dir)
    try:
        check_space(core.staging_dir, model_bytes * (snapshots + shared), origin="staging_dir")
    except ResourceError as error:
        error.message += (
            f", for {snapshots} snapshots of {model_bytes / 1e6:,.1f} MB (eval_max_in_flight = {core.eval_max_in_flight} pending and "
            f"keep_snapshots = {core.keep_snapshots} kept{', beside a publication' if shared else ''})"
        )
        error.remedy = "free some space, choose another directory, or lower one of these options"
        raise


def make_dispatcher(
    core: RunOptions,
    backend: Backend,
    trainer: Exports,
    *,
    model: Path,
    staging: Path,
    checkpoints: Path,
    written: Callable[[int], Awaitable[None]],
    released: Callable[[], Awaitable[None]],
    evaluate: Callable[[Checkpoint], Awaitable[EvalResult]],
    record: Callable[[EvalRecord], None],
) -> EvalDispatcher:
    """Return the dispatcher of a run.

    Args:
        model: the initial model.
        checkpoints: directory of the run's checkpoints; `written` waits until that of a step is complete, and `released` is called when
            one of them is no longer needed for a point.
    """
    snapshots = Snapshots(staging)
    if exports_snapshots(core, backend):
        snapshots = ExportedSnapshots(trainer, staging, model, keep=core.keep_snapshots)
    elif takes_snapshots(core, backend):
        snapshots = ReusedCheckpoints(checkpoints, model, written=written, released=released, staging=staging)
    return EvalDispatcher(
        interval=core.eval_interval,
        before=core.eval_before_training,
        evaluate=evaluate,
        record=record,
        snapshots=snapshots,
        blocking=blocks(backend),
        max_in_flight=core.eval_max_in_flight,
        overflow=core.eval_overflow,
        timeout=core.eval_timeout,
        wait_warning=core.wait_warning,
    )


def _multiple(option: str, value: int, of: int) -> str:
    below = value // of * of
    return f"use {option} = {f'{below} or ' if below else ''}{below + of}"


def _same_file_system(one: Path, other: Path) -> bool:
    return one.is_dir() and other.is_dir() and one.stat().st_dev == other.stat().st_dev

"""Checkpoints on disk: written whole or not at all, recognised when they are torn, read again without pickle."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.errors import CheckpointError, RunDirectoryError
from asyncrl.paths import inside

log = logging.getLogger("asyncrl")

FORMAT = 1
"""Version of the layout; another one is refused."""
RUN_FILE = "run.json"
ARRAYS_FILE = "rollout.npz"
MANIFEST = "manifest.json"
HASHED = (RUN_FILE, ARRAYS_FILE)
"""Small files, of which the manifest holds the checksum and not only the size."""


@dataclass(frozen=True)
class Stored:
    """A complete checkpoint. `run` is the content of its `run.json`."""

    directory: Path
    step: int
    run: Mapping[str, Any]

    @property
    def model(self) -> Path:
        """The Hugging Face directory."""
        return self.directory / "model"

    @property
    def trainer(self) -> Path:
        return self.directory / "trainer"

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Read the groups that were held. Raises `CheckpointError`."""
        try:
            with np.load(self.directory / ARRAYS_FILE, allow_pickle=False) as file:
                return {name: file[name] for name in file.files}
        except (OSError, ValueError, zipfile.BadZipFile) as cause:
            raise CheckpointError(f"{self.directory / ARRAYS_FILE} can't be read: {cause}") from cause


def write_state(directory: Path, run: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write what the controller and the rollout side need to go on. Raises OSError."""
    if pickled := [name for name, array in arrays.items() if array.dtype.hasobject]:
        raise TypeError(f"arrays of objects are never written: {', '.join(pickled)}")
    (directory / RUN_FILE).write_text(json.dumps({"format": FORMAT, **run}))
    with (directory / ARRAYS_FILE).open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def seal(directory: Path) -> None:
    """Write the manifest of all that is in `directory`, and bring everything to the disk. Raises OSError."""
    files = sorted(path for path in directory.rglob("*") if path.is_file() and path != directory / MANIFEST)
    sizes = {str(path.relative_to(directory)): path.stat().st_size for path in files}
    hashes = {name: _hash(directory / name) for name in HASHED}
    (directory / MANIFEST).write_text(json.dumps({"sizes": sizes, "sha256": hashes}))
    for path in [*directory.rglob("*"), directory]:
        sync(path)


def sync(path: Path) -> None:
    """Have a file, or the names in a directory, reach the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(directory: Path) -> Stored:
    """Read a checkpoint. Raises `CheckpointError` for one that is torn, or of another format."""
    try:
        manifest = json.loads((directory / MANIFEST).read_text())
        for name, size in manifest["sizes"].items():
            if (found := inside(directory, name).stat().st_size) != size:
                raise CheckpointError(f"{directory / name} has {found} bytes instead of {size}")
        for name, digest in manifest["sha256"].items():
            if not inside(directory, name).is_file() or _hash(directory / name) != digest:
                raise CheckpointError(f"{directory / name} is not what was written")
        run = json.loads((directory / RUN_FILE).read_text())
        step = int(run["step"])
    except FileNotFoundError as cause:
        raise CheckpointError(f"{cause.filename} is missing") from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as cause:
        raise CheckpointError(f"{directory} can't be read: {cause}") from cause
    if run.get("format") != FORMAT:
        raise CheckpointError(f"{directory} has format {run.get('format')!r}, and this asyncrl reads {FORMAT}")
    return Stored(directory, step, run)


def partial(directory: Path, step: int) -> Path:
    """Return where the checkpoint of `step` grows until it is complete."""
    return directory / f".step-{step}.partial"


def remove_partial(directory: Path) -> None:
    """Remove what was left of checkpoints that never became complete."""
    for growing in directory.glob(".step-*.partial"):
        shutil.rmtree(growing, ignore_errors=True)


def steps_in(directory: Path) -> list[int]:
    """Steps that have a directory below `checkpoints/`, newest first, whatever its state."""
    names = [path.name.removeprefix("step-") for path in directory.glob("step-*")]
    return sorted((int(name) for name in names if name.isdecimal()), reverse=True)


def choose(directory: Path, wanted: str = "") -> Stored:
    """Return the newest complete checkpoint, or the `wanted` one (``step-20`` or ``20``). A torn one is passed over with a warning.

    Raises:
        RunDirectoryError: there is none; or the wanted one is not there, or torn.
    """
    steps = steps_in(directory)
    there = ", ".join(f"step-{step}" for step in steps) or "none"
    if wanted:
        name = wanted.removeprefix("step-")
        if not name.isdecimal() or int(name) not in steps:
            raise RunDirectoryError(
                f"there is no checkpoint {wanted!r} in {directory}", origin="--from", remedy=f"there are: {there}"
            )
        try:
            return read(directory / f"step-{int(name)}")
        except CheckpointError as cause:
            raise RunDirectoryError(
                f"the checkpoint step-{int(name)} is not complete: {cause.message}",
                origin="--from",
                remedy="leave --from out to take the newest complete one",
            ) from cause
    problems = []
    for step in steps:
        try:
            stored = read(directory / f"step-{step}")
        except CheckpointError as cause:
            problems.append(f"step-{step}: {cause.message}")
            continue
        for problem in problems:
            log.warning("a checkpoint that is not complete is passed over: %s", problem)
        return stored
    raise RunDirectoryError(
        f"{directory.parent} has no complete checkpoint{''.join(f'; {problem}' for problem in problems)}",
        remedy="start the run anew, with a save_interval",
    )


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

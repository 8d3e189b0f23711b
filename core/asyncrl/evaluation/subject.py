"""What `asyncrl eval` is given: a Hugging Face directory, or a checkpoint of a run with the run's own options beside it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from asyncrl.errors import CheckpointError, OptionError
from asyncrl.evaluation.records import Checkpoint
from asyncrl.training.snapshots import is_complete
from asyncrl.training.stored import MANIFEST, RUN_FILE, Stored, read, steps_in

STEP = re.compile(r"\.?step-\d+(\.partial)?")
"""Name of a checkpoint's directory, that of one which is still being written included."""
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Subject:
    """What is evaluated.

    Attributes:
        name: of it, for people and for the directory of the results.
        file: the options of the run that made it; None where no run did.
        dtype: that of the engines of that run; '' if there is none.
    """

    checkpoint: Checkpoint
    name: str
    file: Path | None = None
    dtype: str = ""

    @property
    def model(self) -> Path:
        """The Hugging Face directory."""
        return self.checkpoint.require()


def find_subject(path: Path) -> Subject:
    """Return what lies at `path`.

    Raises:
        OptionError: nothing that could be evaluated, or nothing complete; says what.
    """
    directory = path.absolute()
    if not directory.is_dir():
        raise _no(path, "is a file, and a checkpoint is a directory" if directory.exists() else "there is no such directory")
    if any((directory / name).is_file() for name in (RUN_FILE, MANIFEST)) or STEP.fullmatch(directory.name):
        return _of_run(path, directory)
    if not (directory / "config.json").is_file():
        if (directory / "checkpoints").is_dir():
            steps = ", ".join(f"step-{step}" for step in steps_in(directory / "checkpoints"))
            raise _no(path, "is a run, and not one of its checkpoints", f"it has {steps}" if steps else "it has none")
        raise _no(path, "holds no model: it has no file config.json")
    _require_weights(path, directory)
    return Subject(Checkpoint(0, 0, directory, marked=False), directory.name)


def _of_run(path: Path, directory: Path) -> Subject:
    try:
        stored = read(directory)
        version = _version(stored)
        digest, dtype = str(stored.run.get("digest", "")), str(stored.run["options"]["dtype"])
    except CheckpointError as cause:
        raise _no(path, f"is not complete: {cause.message}") from cause
    except (LookupError, TypeError, ValueError) as cause:
        raise _no(path, f"{RUN_FILE} can't be read: {cause!r}") from cause
    if not is_complete(stored.model):
        raise _no(path, "is not complete: its model has no completion marker")
    run = directory.parent.parent
    file = run / "config.toml"
    checkpoint = Checkpoint(stored.step, version, stored.model, digest=digest)
    return Subject(checkpoint, f"{run.name}-{directory.name}", file if file.is_file() else None, dtype)


def _version(stored: Stored) -> int:
    """The weights' version; where they were not published, the one that their publication would have made."""
    published = int(stored.run["trained"]["published"]) == stored.step
    return int(stored.run["version"]) + (not published)


def _require_weights(path: Path, directory: Path) -> None:
    index = directory / INDEX
    try:
        parts = sorted(set(json.loads(index.read_text())["weight_map"].values())) if index.is_file() else []
    except (OSError, ValueError, LookupError, AttributeError, TypeError) as cause:
        raise _no(path, f"{INDEX} can't be read: {cause!r}") from cause
    try:
        missing = [part for part in parts if not _beside(index, part).is_file()]
    except ValueError as cause:
        raise _no(path, f"{INDEX} can't be followed: {cause}") from None
    if missing:
        raise _no(path, f"is not complete: {missing[0]} is missing")
    if not parts and not any(directory.glob("*.safetensors")):
        raise _no(path, "holds no model: it has no *.safetensors")


def _beside(index: Path, part: str) -> Path:
    """Where a part of the weights lies: beside the index, under a plain name. It may be a link, as in Hugging Face's own cache."""
    if Path(part).name != part:
        raise ValueError(f"{part!r} is no name of a file beside it")
    return index.parent / part


def _no(path: Path, message: str, remedy: str = "") -> OptionError:
    wanted = "name a Hugging Face directory, or checkpoints/step-N of a run"
    return OptionError(message, origin=str(path), remedy=remedy or wanted)

"""Paths that come from files, kept inside their directory; directories that no other user can read or fill."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from asyncrl.errors import ResourceError


def inside(directory: Path, name: str) -> Path:
    """Return the place of this name below a directory.

    Raises:
        ValueError: it leads out of the directory, by itself (absolute, ``..``) or by a link, or can't be a name.
    """
    shown = repr(name if len(name) <= 80 else f"{name[:80]}…")
    try:
        place = (directory / name).resolve()
    except (OSError, ValueError, RuntimeError) as cause:  # too long, a NUL, links in a circle
        raise ValueError(f"{shown} is no name of a file: {cause}") from None
    home = directory.resolve()
    if not name or Path(name).is_absolute() or ".." in Path(name).parts or place == home or not place.is_relative_to(home):
        raise ValueError(f"{shown} leads out of {directory}")
    return directory / name


def make_private(directory: Path, *, origin: str) -> None:
    """Make a directory that only its owner can enter; one that is there already must be the owner's own.

    Raises:
        ResourceError: somebody else made it, or it is a link; `origin` is the option that chose its place.
        OSError: it can't be made.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        found = directory.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise ResourceError(
                f"{directory} is not a directory of this user", origin=origin, remedy="name a place that others can't write to"
            ) from None
        directory.chmod(0o700)

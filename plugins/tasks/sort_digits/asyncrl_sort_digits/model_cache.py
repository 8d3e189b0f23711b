"""Where the warm-started model is kept between runs: made once by a child process, complete or absent, safe for two runs at once."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from asyncrl import ResourceError

log = logging.getLogger("asyncrl")

RECIPE_VERSION = 1
"""Raised when the same options give another model, so that no run finds an old one."""
CONTENT = "content.json"
"""Written last: size and SHA-256 of every other file."""
SAY_EVERY = 30.0
GIVE_UP_AFTER = 900.0


@dataclass(frozen=True)
class Recipe:
    """Everything the model depends on."""

    seed: int
    min_digits: int = 3
    max_digits: int = 5
    steps: int = 100

    def name(self) -> str:
        content = json.dumps({"version": RECIPE_VERSION, **asdict(self)}, sort_keys=True)
        return f"sort-digits-{hashlib.sha256(content.encode()).hexdigest()[:16]}"


def model_directory(cache_dir: Path, recipe: Recipe) -> Path:
    """Return the Hugging Face directory of a recipe's model below `cache_dir`, making it when it is missing or damaged.

    Raises:
        ResourceError: the cache can't be written.
        RuntimeError: the child process that makes the model failed.
    """
    directory = cache_dir / recipe.name()
    if is_whole(directory):
        return directory
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with locked(cache_dir / f"{recipe.name()}.lock"):
            if not is_whole(directory):  # another run may have made it while this one waited
                _make(directory, recipe)
    except OSError as cause:
        raise ResourceError(
            f"can't keep the model in {cache_dir}: {cause.strerror or cause}",
            origin="cache_dir",
            remedy="choose a directory that can be written",
        ) from cause
    return directory


def describe(directory: Path) -> dict[str, list[int | str]]:
    """Size and SHA-256 of every file of a directory except the description itself."""
    return {
        path.name: [path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest()]
        for path in sorted(directory.iterdir())
        if path.name != CONTENT
    }


def is_whole(directory: Path) -> bool:
    """Whether the directory holds exactly what was written, to the last byte (3 MB: some milliseconds)."""
    try:
        described: dict[str, list[int | str]] = json.loads((directory / CONTENT).read_text())
        return bool(described) and described == describe(directory)
    except (OSError, ValueError):
        return False


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock between processes, which the kernel lets go of with its holder; warn while another run holds it."""
    with path.open("w") as file:
        started = said = time.monotonic()
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                now = time.monotonic()
                if now - started > GIVE_UP_AFTER:
                    raise RuntimeError(f"another run has held {path} for {GIVE_UP_AFTER:.0f} s") from None
                if now - said > SAY_EVERY:
                    said = now
                    log.warning("waiting for another run that makes the model (%s, %.0f s)", path, now - started)
                time.sleep(0.05)
        yield


def _make(directory: Path, recipe: Recipe) -> None:
    started = time.monotonic()
    what = "making the sort-digits model for seed %d: %d steps of warm start, once (about 15 s on an idle core)"
    log.info(what, recipe.seed, recipe.steps)
    for leftover in directory.parent.glob(f"{directory.name}.partial-*"):  # of a run that was killed; the lock is ours
        shutil.rmtree(leftover, ignore_errors=True)
    partial = directory.with_name(f"{directory.name}.partial-{os.getpid()}")
    partial.mkdir()
    try:
        _warm_start_in_a_child(partial, recipe)
        (partial / CONTENT).write_text(json.dumps(describe(partial)))
        _to_disk(partial)
        shutil.rmtree(directory, ignore_errors=True)  # what was damaged
        partial.rename(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    log.info("made the sort-digits model in %.0f s: %s", time.monotonic() - started, directory)


def _warm_start_in_a_child(directory: Path, recipe: Recipe) -> None:
    """Train in a process of its own: one thread, no torch in the caller, and gone with the caller (it watches its input)."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-P", "-m", "asyncrl_sort_digits.child", str(directory), json.dumps(asdict(recipe))]
    started = time.monotonic()
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=said,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches the caller alone, which then ends the child
        ) as child,
    ):
        try:
            _wait(child, started)
        finally:
            child.kill()
        if child.returncode != 0:
            said.seek(0)
            last_words = said.read()[-4000:].decode(errors="replace")
            raise RuntimeError(f"warm start of the sort-digits model failed ({child.returncode}):\n{last_words}")


def _wait(child: subprocess.Popen[bytes], started: float) -> None:
    while child.poll() is None:
        try:
            child.wait(timeout=SAY_EVERY)
        except subprocess.TimeoutExpired:
            spent = time.monotonic() - started
            if spent > GIVE_UP_AFTER:
                raise RuntimeError(f"warm start of the sort-digits model did not end within {GIVE_UP_AFTER:.0f} s") from None
            log.warning("still making the sort-digits model (%.0f s)", spent)


def _to_disk(directory: Path) -> None:
    """Flush every file, so that no power cut leaves a complete name over empty files."""
    for path in [*directory.iterdir(), directory]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

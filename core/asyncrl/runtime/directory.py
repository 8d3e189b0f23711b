"""The run directory: `runs/NAME/` with config, metrics, eval records, times and trace, checkpoints, log and summary."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from asyncrl.errors import RunDirectoryError
from asyncrl.evaluation.records import EvalRecord
from asyncrl.line_file import LineFile
from asyncrl.runtime.lock import RunLock
from asyncrl.runtime.log_files import RunLog
from asyncrl.runtime.recorder import Recorded
from asyncrl.training.loop import StepTimes

CONFIG = "config.toml"
SUMMARY = "summary.json"


def run_name(name: str, file: Path | None) -> str:
    """Return the run's name: `--name`, or the file's name and the time."""
    return name or f"{file.stem if file else 'run'}-{time.strftime('%Y%m%d-%H%M%S')}"


class RunDirectory:
    """One run's files. Made anew, an existing directory is refused; `resumed`, the run goes on in it.

    Attributes:
        untouched: whether a run that goes on has not begun to yet, so that all is as its earlier part left it.

    Raises:
        RunDirectoryError: it exists already, or cannot be made.
    """

    def __init__(self, runs_dir: Path, name: str, *, resumed: bool = False) -> None:
        self.name = name
        self.path = (runs_dir / name).absolute()
        self.lock = RunLock(self.path)
        self._files: dict[str, LineFile] = {}
        self.resumed = resumed
        self.untouched = resumed
        self._config = ""
        if resumed:
            return
        if name in ("", ".", "..") or Path(name).name != name:
            raise RunDirectoryError(f"{name!r} is no name for a run", origin="--name", remedy="use a plain folder name")
        if self.path.exists():
            raise RunDirectoryError(
                f"the run directory {self.path} exists already", origin="--name", remedy="choose another --name, or remove it"
            )

    def create(self, config_toml: str) -> None:
        """Make the directory with its `config.toml`, and take the run's lock. A run that goes on has both; `cut` writes its options."""
        self._config = config_toml
        if self.resumed:
            return
        try:
            self.path.mkdir(parents=True)
            self.lock.take()
            self._replace(CONFIG, config_toml)
        except FileExistsError as cause:
            raise RunDirectoryError(f"the run directory {self.path} exists already", origin="--name") from cause
        except OSError as cause:
            raise RunDirectoryError(f"cannot make the run directory {self.path}: {cause.strerror}", origin="runs_dir") from cause

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def log_file(self) -> Path:
        return self.path / "log.txt"

    def open_log(self, limit: int = 0) -> logging.Handler:
        """Send the `asyncrl` logger to `log.txt`, which begins anew at `limit` bytes (0: never); return the handler to remove."""
        handler = RunLog(self.log_file, limit)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logger = logging.getLogger("asyncrl")
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        return handler

    def add_eval(self, record: EvalRecord) -> None:
        """Append one settled point to `evals.jsonl`."""
        self._append("evals.jsonl", json.dumps(asdict(record)) + "\n")

    def add_step(self, step: int, times: StepTimes, paused: float) -> None:
        """Append the seconds of one step to `steps.jsonl`; the engines stood still for `paused` of its publication."""
        parts = {"wait": times.wait, "train": times.train, "publish": times.publish, "paused": paused}
        parts |= {"checkpoint": times.checkpoint, "evaluation": times.evaluation}
        line = {"step": step} | {name: round(seconds, 6) for name, seconds in parts.items()}
        self._append("steps.jsonl", json.dumps(line) + "\n")

    def add_trace(self, groups: Sequence[Recorded]) -> None:
        """Append finished groups to `trace.jsonl`."""
        lines = []
        for prompt_id, tokens, seconds, rewards in groups:
            line: dict[str, Any] = {"prompt_id": prompt_id, "tokens": tokens}
            if seconds:
                line["seconds"] = [round(each, 6) for each in seconds]
            lines.append(json.dumps(line | {"rewards": rewards}) + "\n")
        self._append("trace.jsonl", "".join(lines))

    def cut(self, step: int, traced: int) -> None:
        """Take back what was written after the checkpoint of `step`, so that nothing is written twice. From here on the run has the
        options with which it goes on.

        Eval points are kept by the step they belong to, also those that were settled late.

        Args:
            traced: groups in `trace.jsonl` then.
        """
        self.untouched = False
        self._keep("steps.jsonl", lambda number, line: line["step"] <= step)
        self._keep("evals.jsonl", lambda number, line: line["step"] <= step)
        self._keep("trace.jsonl", lambda number, line: number < traced)
        (self.path / SUMMARY).unlink(missing_ok=True)
        for write in (self.flush, lambda: self._replace(CONFIG, self._config)):
            with contextlib.suppress(OSError):  # a full disk does not stop that
                write()

    def completed(self, step: int) -> bool:
        """Whether the run came to its end with this step."""
        try:
            summary = json.loads((self.path / SUMMARY).read_text())
        except (OSError, ValueError):
            return False
        return isinstance(summary, dict) and (summary.get("outcome"), summary.get("steps")) == ("completed", step)

    def lines(self, name: str) -> list[dict[str, Any]]:
        """Return the lines of a file; one that a killed run, or a machine that lost its power, left broken is no line."""
        return [line for text in self._file(name) if (line := _parsed(text))]

    def _keep(self, name: str, belongs: Callable[[int, dict[str, Any]], bool]) -> None:
        numbers = itertools.count()
        self._file(name).keep(lambda text: belongs(next(numbers), line) if (line := _parsed(text)) else False)

    def remove(self) -> None:
        """Take the directory back: the run was refused before it began. One that goes on keeps it."""
        if not self.resumed:
            shutil.rmtree(self.path, ignore_errors=True)

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write it whole or not at all. Raises OSError."""
        self._replace(SUMMARY, json.dumps(summary, indent=2) + "\n")

    def _replace(self, name: str, text: str) -> None:
        growing = self.path / f".{name}"
        try:
            growing.write_text(text)
            growing.replace(self.path / name)
        except OSError:
            growing.unlink(missing_ok=True)
            raise

    def flush(self) -> None:
        """Write what a full disk did not take before. Raises OSError when it still does not."""
        for file in self._files.values():
            file.flush()

    def _append(self, name: str, lines: str) -> None:
        """Append whole lines to a file. Raises OSError for a full disk; they are written with the next ones."""
        self._file(name).add(lines.encode())

    def _file(self, name: str) -> LineFile:
        return self._files.setdefault(name, LineFile(self.path / name))


def _parsed(text: bytes) -> dict[str, Any]:
    """Return a whole line's object, and an empty one for anything else."""
    try:
        line = json.loads(text) if text.endswith(b"\n") else {}
    except ValueError:
        return {}
    return line if isinstance(line, dict) else {}

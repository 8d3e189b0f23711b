"""One run in W&B: every metric with an axis of its own, nothing against W&B's global step, nothing that may hold a secret."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Mapping, Sequence
from typing import Any

import wandb
from asyncrl import Axis

from asyncrl_wandb.link import has_no_room
from asyncrl_wandb.series import SAMPLE_COLUMNS, SAMPLES

INIT = ("project", "entity", "group", "tags", "name", "id", "dir", "config", "mode")


class Session:
    """Begins a run; takes what `Link` sends, one method a kind of message.

    Args:
        start: what `wandb.init` takes (see `INIT`) and
            ``resume``: whether the id is one to go on with;
            ``told_again``: whether some of what W&B has of it comes again, because the run goes on from a checkpoint;
            ``axes``, ``definitions``: names of the axes, and pairs (metric, axis);
            ``controller``: process whose use of the machine is recorded;
            ``finish_seconds``: after so many at the end W&B stops uploading and leaves the rest on disk.

    Raises:
        Exception: whatever W&B raises; also after blocking for minutes.
    """

    def __init__(self, start: Mapping[str, Any]) -> None:
        settings = wandb.Settings(
            console="off",
            silent=True,
            # The command line, the repository's address and the environment may hold secrets.
            disable_code=True,
            disable_git=True,
            save_code=False,
            x_disable_meta=True,
            x_save_requirements=False,
            x_stats_pid=start["controller"],
            finish_timeout=start["finish_seconds"],
            finish_timeout_raises=True,
        )
        online = start["mode"] == "online"
        resume = "allow" if start["resume"] and online else None
        self._run = wandb.init(**{name: start[name] for name in INIT}, resume=resume, settings=settings)
        self.url = (self._run.url or "") if online else ""
        self.directory = str(self._run.settings.sync_dir)
        self._writes = not online
        self._full = False
        self._had: dict[str, float] = {}
        if resume and start["told_again"]:
            last = {axis: self._run.summary.get(axis) for axis in start["axes"]}
            self._had = {axis: value for axis, value in last.items() if isinstance(value, int | float)}
        self._exit_code = 1  # the controller was killed, unless it says how the run ended
        self._defined = {"_timestamp", *start["axes"]}
        for axis in start["axes"]:
            self._run.define_metric(axis, hidden=True)
        for name, axis in start["definitions"]:
            self._define(name, axis)

    def log(self, axis: str, step: float, seconds: float, values: Mapping[str, float]) -> None:
        """Log values at a step of their axis, as of `seconds` since the epoch. What W&B has already keeps its first values."""
        self._require_room()
        if self._has(axis, step):
            return
        for name in values.keys() - self._defined:  # a label that came up
            self._define(name, axis)
        self._run.log({**values, axis: step, "_timestamp": seconds})

    def samples(self, *rows: Sequence[Any]) -> None:
        """Log a table of completions; each row has `SAMPLE_COLUMNS`."""
        self._require_room()
        axis = SAMPLE_COLUMNS[0]
        if self._has(axis, rows[0][0]):
            return
        self._run.log({SAMPLES: wandb.Table(columns=list(SAMPLE_COLUMNS), data=[list(row) for row in rows]), axis: rows[0][0]})

    def end(self, summary: Mapping[str, Any]) -> None:
        """Take the run's summary and outcome."""
        self._exit_code = 0 if summary.get("outcome") in ("completed", "interrupted") else 1
        self._run.summary.update({"run_summary": dict(summary)})

    def finish(self) -> None:
        """Close W&B's files, and wait until its server has everything. Raises TimeoutError when that takes too long."""
        self._run.finish(exit_code=self._exit_code)

    def _require_room(self) -> None:
        """Raise OSError once the disk was full: W&B's file takes nothing after that, and W&B does not say so.
        Online the file is not all there is."""
        self._full = self._full or (self._writes and has_no_room(self.directory))
        if self._full:
            raise OSError(errno.ENOSPC, "the disk was full, after which W&B writes nothing more")

    def _has(self, axis: str, step: float) -> bool:
        """Whether W&B has a step of an axis. Eval points come in any order, and only the last of them is known."""
        last = self._had.get(axis)
        return last is not None and (step == last if axis == Axis.EVAL_STEP else step <= last)

    def _define(self, name: str, axis: str) -> None:
        self._defined.add(name)
        with contextlib.suppress(wandb.Error):  # a label with a * in it: logged all the same, its axis in the row
            self._run.define_metric(name, step_metric=axis)

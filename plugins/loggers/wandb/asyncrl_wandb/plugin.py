"""The logger's hooks: they put a record into a queue and return."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asyncrl import Axis, Counter, EvalRecord, Gauge, MetricRecord, MetricSet, Plugin, RunFacts, RunHeader, hookimpl

from asyncrl_wandb.link import Link
from asyncrl_wandb.options import WandbOptions
from asyncrl_wandb.series import definitions

log = logging.getLogger("asyncrl")
UPLOAD_SHARE = 0.7
"""Of the time at the end; the rest is for closing files."""
RUN_ID = "wandb-run-id.txt"
LOST = "queue_full"
REFUSED = "failed"


def run_id_of(directory: Path, *, known: bool) -> str:
    """Return the id that a run has in W&B: what its directory says if it is `known`, else a new one, which the directory will say."""
    path = directory / RUN_ID
    if known and path.is_file():
        return path.read_text().strip()
    run_id = secrets.token_hex(4)
    with contextlib.suppress(OSError):  # it costs going on in the same W&B run, never this one
        path.write_text(f"{run_id}\n")
    return run_id


class WandbMetrics(MetricSet):
    """Declared, so that whatever does not reach W&B is seen: in W&B and in the other loggers."""

    waiting = Gauge("Records that wait for W&B", unit="records", axis=Axis.WALL_SECONDS)
    dropped = Counter("Records that W&B did not get, by reason", unit="records", axis=Axis.WALL_SECONDS, label="reason")


class Wandb(Plugin):
    """Logs to Weights & Biases: metrics against their own axes, eval points and skips, completions as a table."""

    hook_api = 1
    Options = WandbOptions
    options: WandbOptions
    Metrics = WandbMetrics
    metrics: WandbMetrics

    def __init__(self, options: WandbOptions, run: RunFacts) -> None:
        super().__init__(options, run)
        self._link: Link | None = None
        self._warned = False
        self._rejected = 0

    @hookimpl
    def log_start(self, header: RunHeader) -> None:
        options, mode = self.options, self.options.resolved_mode()
        if mode == "disabled":
            return
        directory, goes_on = options.dir or header.directory, header.resumed_step >= 0
        run_id = options.run_id or run_id_of(header.directory, known=goes_on)
        start = {
            "project": options.project or os.environ.get("WANDB_PROJECT") or "asyncrl",
            "entity": options.entity,
            "group": options.group,
            "tags": list(options.tags) or None,
            "name": options.run_name or header.name,
            "id": run_id,
            "resume": goes_on or bool(options.run_id),
            "told_again": goes_on,
            "dir": str(directory.absolute()),
            "config": header.options,
            "definitions": definitions(header.metrics),
            "axes": [axis.value for axis in Axis],
            "controller": os.getpid(),
            "finish_seconds": UPLOAD_SHARE * options.finish_seconds,
        }
        for reason in (LOST, REFUSED):
            self.metrics.dropped.add(0, reason)
        self._link = Link(
            start,
            modes=("online", "offline") if mode == "online" else ("offline",),
            log_file=header.directory / "logs" / "wandb.log",
            capacity=options.queue_size,
            start_seconds=options.start_seconds,
        )

    @hookimpl
    def log_metrics(self, record: MetricRecord) -> None:
        self._send("log", (record.axis, record.step, record.time, record.values))

    @hookimpl
    def log_eval(self, record: EvalRecord) -> None:
        """Send the completions; the point's numbers, a skip's reason among them, come as metrics."""
        samples = [
            [record.step, record.version, name, sample.prompt, sample.completion, sample.reward, sample.status]
            for name, one in record.sets.items()
            for sample in one.samples
        ]
        if samples and self.options.log_samples:
            self._send("samples", samples)

    @hookimpl
    def log_end(self, summary: dict[str, Any]) -> None:
        """Wait until W&B has everything, or until its time is up."""
        if self._link is not None:
            self._link.end(summary, self.options.finish_seconds)
            self._tell(self._link)
            self._link = None

    def _send(self, kind: str, content: Sequence[Any]) -> None:
        link = self._link
        if link is None:
            return
        if not link.send(kind, content):
            self.metrics.dropped.add(1, REFUSED if link.failed else LOST)
            if not link.failed and not self._warned:
                self._warned = True
                log.warning(
                    "W&B is too slow: %d records wait and more are dropped (said once; see loggers/wandb/dropped)",
                    self.options.queue_size,
                )
        self.metrics.waiting.set(link.waiting)
        self._tell(link)

    def _tell(self, link: Link) -> None:
        """Say what the link's thread has to say, from the thread that loggers are called in."""
        for level, text in link.notes():
            log.log(level, "%s", text)
        if link.rejected > self._rejected:
            self.metrics.dropped.add(link.rejected - self._rejected, REFUSED)
            self._rejected = link.rejected

"""An observer that writes down how many asyncio tasks its process has, into `tasks.jsonl` of the run's directory."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import asyncrl


class Tasks(asyncrl.Plugin):
    """A line is ``[seconds since the epoch, pid, tasks]``, one a step, of the controller and of the rollout actor."""

    hook_api = 1

    @asyncrl.hookimpl
    def on_step(self, step: int, report: Any) -> None:
        self._count()

    @asyncrl.hookimpl
    def on_batch(self, batch: Any) -> None:
        self._count()

    def _count(self) -> None:
        line = [time.time(), os.getpid(), len(asyncio.all_tasks())]
        with (Path(self.run.run_dir) / "tasks.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

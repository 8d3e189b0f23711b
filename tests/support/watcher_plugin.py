"""An observer that writes down which hooks are called in which process, and fails one of them once it has seen the second batch."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import asyncrl


class Watcher(asyncrl.Plugin):
    """Writes ``[pid, hook]`` lines to `watched.jsonl` in the run's directory, or beside it while there is none yet."""

    hook_api = 1
    seen_second_batch = False

    def _called(self, hook: str) -> None:
        with (Path(self.run.run_dir).parent / "watched.jsonl").open("a") as file:
            file.write(json.dumps([os.getpid(), hook]) + "\n")

    @asyncrl.hookimpl
    def check_run(self, run: Any) -> None:
        Path(self.run.run_dir).parent.mkdir(parents=True, exist_ok=True)
        self._called("check_run")

    @asyncrl.hookimpl
    def on_run_start(self, run: Any) -> None:
        self._called("on_run_start")

    @asyncrl.hookimpl
    def on_group_finished(self, group: Any) -> None:
        self._called("on_group_finished")

    @asyncrl.hookimpl
    def on_group_ended(self, prompt_id: int, fate: str, tokens: int) -> None:
        self._called("on_group_ended")

    @asyncrl.hookimpl
    def on_batch(self, batch: Any) -> None:
        self._called("on_batch")
        self.seen_second_batch = batch.step > 1

    @asyncrl.hookimpl
    def on_step(self, step: int, report: Any) -> None:
        self._called("on_step")

    @asyncrl.hookimpl
    def on_weights_published(self, version: int) -> None:
        self._called("on_weights_published")

    @asyncrl.hookimpl
    def on_checkpoint(self, step: int, directory: Path) -> None:
        self._called("on_checkpoint")

    @asyncrl.hookimpl
    def on_eval(self, record: Any) -> None:
        self._called("on_eval")

    @asyncrl.hookimpl
    def on_metrics(self, record: Any) -> None:
        self._called("on_metrics")

    @asyncrl.hookimpl
    def on_error(self, error: str) -> None:
        self._called("on_error")

    @asyncrl.hookimpl
    def on_run_end(self, outcome: str) -> None:
        self._called("on_run_end")

    @asyncrl.hookimpl
    def score_group(self, group: Any) -> float:
        self._called("score_group")
        if self.seen_second_batch:
            raise ValueError("the watcher has seen enough")
        return 0.0

    @asyncrl.hookimpl(wrapper=True)
    def engine_needs(self) -> Generator[None, Any, Any]:
        self._called("engine_needs")
        return (yield)

    @asyncrl.hookimpl(wrapper=True)
    def engine_server(self) -> Generator[None, Any, Any]:
        self._called("engine_server")
        return (yield)

    @asyncrl.hookimpl(wrapper=True)
    def train_batch(self) -> Generator[None, Any, Any]:
        self._called("train_batch")
        return (yield)

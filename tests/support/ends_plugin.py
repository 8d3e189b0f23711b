"""An observer that writes down which prompts each batch trains and how each prompt ended, into files of the run's directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import asyncrl


class Ends(asyncrl.Plugin):
    """A line of `batches.jsonl` is ``[step, [prompt ids]]``, one of `fates.jsonl` ``[prompt id, fate]``. A run that goes on appends, so
    what happens again has a later line."""

    hook_api = 1

    @asyncrl.hookimpl
    def on_batch(self, batch: Any) -> None:
        self._append("batches.jsonl", [batch.step, batch.prompt_ids.tolist()])

    @asyncrl.hookimpl
    def on_group_ended(self, prompt_id: int, fate: str, tokens: int) -> None:
        self._append("fates.jsonl", [prompt_id, fate])

    def _append(self, name: str, line: list[Any]) -> None:
        with (Path(self.run.run_dir) / name).open("ab", buffering=0) as file:
            file.write((json.dumps(line) + "\n").encode())  # at once: whoever writes it may be killed at any moment

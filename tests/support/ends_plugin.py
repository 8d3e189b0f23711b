"""An observer that writes down which prompts each batch trains, in `batches.jsonl` of the run's directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import asyncrl


class Ends(asyncrl.Plugin):
    """A line is ``[step, [prompt ids]]``; a run that goes on appends, so a step that is trained again has a later line."""

    hook_api = 1

    @asyncrl.hookimpl
    def on_batch(self, batch: Any) -> None:
        with (Path(self.run.run_dir) / "batches.jsonl").open("a") as file:
            file.write(json.dumps([batch.step, batch.prompt_ids.tolist()]) + "\n")

"""An eval backend whose points stay pending until the test lets them through: it waits for the file `go` in the run's directory."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path

import asyncrl


class Held(asyncrl.EvalPlugin):
    """Writes down which weights each point had, in `evaluated.jsonl`: ``[step, version, sha256 of the file of weights]``."""

    hook_api = 1

    @asyncrl.hookimpl
    async def evaluate_checkpoint(self, checkpoint: asyncrl.Checkpoint, sets: asyncrl.EvalSets) -> asyncrl.EvalResult:
        place = Path(self.run.run_dir)
        while not (place / "go").exists():  # noqa: ASYNC110 - it is made by another process
            await asyncio.sleep(0.1)
        weights = checkpoint.require() / "model.safetensors"
        line = [checkpoint.step, checkpoint.version, hashlib.sha256(weights.read_bytes()).hexdigest()]
        with (place / "evaluated.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        one = asyncrl.SetResult(
            mean_reward=0.5,
            num_prompts=1,
            num_samples=1,
            failed=0.0,
            truncated=0.0,
            mean_length=1.0,
            version_mean=float(checkpoint.version),
            mixed_version=0.0,
        )
        return asyncrl.EvalResult({each.name: one for each in sets.sets})

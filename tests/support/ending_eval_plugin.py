"""An eval backend that ends the process it runs in, as a fault in native code does."""

from __future__ import annotations

import os

import asyncrl


class Ending(asyncrl.EvalPlugin):
    """Says so on stdout first."""

    hook_api = 1

    @asyncrl.hookimpl
    async def evaluate_checkpoint(self, checkpoint: asyncrl.Checkpoint, sets: asyncrl.EvalSets) -> asyncrl.EvalResult:
        print("about to end", flush=True)
        os._exit(3)

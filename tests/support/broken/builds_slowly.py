"""A plugin whose constructor takes long."""

from __future__ import annotations

import sys
import time

from asyncrl import BufferOptions, RunFacts

from broken import buffers


class Right(buffers.Right):
    def __init__(self, options: BufferOptions, run: RunFacts) -> None:
        super().__init__(options, run)
        if "pytest" not in sys.modules:  # in a fresh process; elsewhere it would only slow the tests down
            time.sleep(1.0)

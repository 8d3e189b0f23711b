"""A plugin whose module takes long to import."""

from __future__ import annotations

import time

from broken import buffers

time.sleep(1.0)


class Right(buffers.Right): ...

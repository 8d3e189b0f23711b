"""A plugin whose module imports a package that takes seconds to import."""

from __future__ import annotations

import jax  # noqa: F401  # a stand-in that the tests put beside it

from broken import buffers


class Right(buffers.Right): ...

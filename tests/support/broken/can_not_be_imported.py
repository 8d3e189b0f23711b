"""A plugin whose module raises when it is imported."""

from __future__ import annotations

raise RuntimeError("a library that it needs is too old")

"""Stands in for SGLang's compiled kernels where there is no GPU: their CPU build is not on PyPI.

SGLang imports many names from here; with its torch-native backends it calls none of them, and one that is called after all raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def __getattr__(name: str) -> Callable[..., Any]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"sgl_kernel.{name} is a GPU kernel; this environment is for CPUs")

    missing.__name__ = name
    return missing

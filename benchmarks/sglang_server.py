"""Real SGLang servers for the benchmarks, as tests/sglang starts them."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path[:0] = [str(TESTS / "sglang"), str(TESTS / "support")]


@contextmanager
def served(model: Path) -> Iterator[Any]:
    """One healthy server; it ends with the block."""
    from servers import Server

    with tempfile.TemporaryDirectory(prefix="asyncrl-bench-") as folder:
        server = Server("engine-0", model, Path(folder))
        try:
            server.wait()
            yield server
        finally:
            server.end()

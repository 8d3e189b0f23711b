"""The plugin keeps the contract of its slot on a real server that it starts itself."""

from __future__ import annotations

from asyncrl.testing import EngineSuite
from servers import PYTHON


class TestSGLang(EngineSuite):
    plugin = "sglang"
    options = {"python": str(PYTHON)}  # noqa: RUF012

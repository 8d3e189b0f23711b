"""The plugin keeps the contract of its slot; with a real server, tests/sglang tries the rest."""

from __future__ import annotations

from asyncrl.testing import EngineSuite


class TestSGLang(EngineSuite):
    plugin = "sglang"
    no_server = "SGLang has an environment of its own: make test-sglang"

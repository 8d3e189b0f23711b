"""The plugin keeps the contract of its slot."""

from __future__ import annotations

from asyncrl.testing import EvalSuite


class TestSGLang(EvalSuite):
    plugin = "sglang"

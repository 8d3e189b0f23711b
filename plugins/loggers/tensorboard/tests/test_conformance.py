"""The plugin keeps the contract of its slot."""

from __future__ import annotations

from asyncrl.testing import LoggerSuite


class TestTensorBoard(LoggerSuite):
    plugin = "tensorboard"

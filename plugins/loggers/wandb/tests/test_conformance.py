"""The plugin keeps the contract of its slot."""

from __future__ import annotations

from asyncrl.testing import LoggerSuite


class TestWandb(LoggerSuite):
    plugin = "wandb"
    options = {"mode": "offline"}  # noqa: RUF012

"""The plugin keeps the contract of its slot."""

from __future__ import annotations

from asyncrl.testing import BufferSuite


class TestFifo(BufferSuite):
    plugin = "fifo"
    order = "fifo"

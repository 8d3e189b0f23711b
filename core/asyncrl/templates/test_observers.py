"""The plugin keeps the contract of its slot, and its own promises."""

from __future__ import annotations

import pytest
from asyncrl.testing import ObserverSuite
from asyncrl.testing.groups import make_group


class TestTemplateName(ObserverSuite):
    plugin = "template-name"

    def test_it_warns_when_its_patience_ends(self, caplog: pytest.LogCaptureFixture) -> None:
        """A suite's methods help with your own tests too: `host` has the plugin alone, here with options of its own."""
        host = self.host(self.make({"patience": 3}))
        for rewards in [(0.0, 1.0), (1.0, 1.0), (1.0, 1.0), (1.0, 1.0)]:
            assert not caplog.messages
            host.observe("on_group_finished", group=make_group(7, rewards=rewards))
        assert caplog.messages == ["3 groups in a row had rewards that are all alike, the last one 1"]

"""The plugin keeps the contract of its slot, and its own promises."""

from __future__ import annotations

from asyncrl.rollout.verdicts import ACCEPTED, FULL
from asyncrl.testing import BufferSuite
from asyncrl.testing.groups import make_group


class TestTemplateName(BufferSuite):
    plugin = "template-name"
    order = "freshest"
    evicts = True

    def test_it_can_have_the_producer_wait_instead(self) -> None:
        """A suite's methods help with your own tests too: `host` has the plugin alone, here with options of its own."""
        put = self.host(self.make({"evict": False, "capacity_factor": 1.0})).one("buffer_put")
        for prompt_id in range(self.facts().batch_size):
            assert put(group=make_group(prompt_id), score=0.0) == ACCEPTED
        assert put(group=make_group(99), score=0.0) == FULL

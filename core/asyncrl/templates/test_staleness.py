"""The plugin keeps the contract of its slot, and its own promises."""

from __future__ import annotations

from asyncrl.rollout.verdicts import KEEP, drop
from asyncrl.testing import StalenessSuite
from asyncrl.testing.groups import make_group


class TestTemplateName(StalenessSuite):
    plugin = "template-name"

    def test_a_few_old_tokens_are_no_reason_to_drop_a_group(self) -> None:
        """A suite's methods help with your own tests too: `host` has the plugin alone."""
        judge = self.host().one("judge_staleness")
        old = make_group(7, oldest=3, rewards=(0.0, 1.0), tokens=10)
        assert judge(group=old, version=5) == KEEP
        assert judge(group=old, version=6) == drop("old_tokens")

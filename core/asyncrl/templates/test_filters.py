"""The plugin keeps the contract of its slot, and its own promises."""

from __future__ import annotations

from asyncrl.rollout.verdicts import KEEP, drop
from asyncrl.samples import Group, Status
from asyncrl.testing import FilterSuite
from asyncrl.testing.groups import make_group, make_sample


class TestTemplateName(FilterSuite):
    plugin = "template-name"

    def test_a_group_that_was_mostly_cut_off_is_dropped(self) -> None:
        """A suite's methods help with your own tests too: `host` has the plugin alone."""
        whole, cut_off = make_sample(), make_sample(status=Status.TRUNCATED)
        prompt = make_group(7).prompt
        [(_, verdict)] = self.host().each("judge_group", group=Group(prompt, (whole, cut_off)))
        assert verdict == KEEP
        [(_, verdict)] = self.host().each("judge_group", group=Group(prompt, (whole, cut_off, cut_off)))
        assert verdict == drop("cut_off")

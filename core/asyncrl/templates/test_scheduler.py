"""The plugin keeps the contract of its slot, and its own promises."""

from __future__ import annotations

from dataclasses import replace

from asyncrl.testing import SchedulerSuite
from asyncrl.testing.groups import idle_load


class TestTemplateName(SchedulerSuite):
    plugin = "template-name"

    def test_it_runs_no_more_than_two_batches_ahead(self) -> None:
        """A suite's methods help with your own tests too: `host` has the plugin alone, `facts` are a small run's."""
        quota = self.host().one("submission_quota")
        load = idle_load(self.facts(), max_concurrent_samples=1000)
        assert quota(load=load) == 2 * load.batch_size
        assert quota(load=replace(load, groups_buffered=2 * load.batch_size - 1)) == 1
        assert quota(load=replace(load, groups_buffered=2 * load.batch_size)) == 0

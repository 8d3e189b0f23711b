"""Rules on a plugin in its life: it is rebuilt elsewhere from its name and options, and emits every metric that it declares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from asyncrl.host import Host
from asyncrl.testing.answers import answer
from asyncrl.testing.ray_session import ActorFailed, shared
from asyncrl.testing.reach import Reach
from asyncrl.testing.rules import broken, expect


class ProcessRules(Reach):
    def test_a_ray_actor_rebuilds_it(self, request: pytest.FixtureRequest) -> None:
        """In another process, from (slot, name, distribution, version, options as JSON) alone, it answers as it does here."""
        active, run = self.make(), self.facts()
        one, extra = self.ready(), self.asked_with()
        here = answer(Host([active]), run, extra)
        try:
            there = shared(request).answer(one.spec(one.options(self.options)), run, extra)
        except ActorFailed as error:
            broken(
                promised="every process that needs the plugin makes its own, by name and options",
                happened=f"in a Ray actor that failed: {error}",
                fix="keep nothing in module globals or in the working directory that the plugin needs",
            )
        expect(
            there == here,
            promised="rebuilt in another process, the plugin answers as it does here",
            happened=f"there it answered {there!r}, here {here!r}",
            fix="derive everything from options and the facts of the run; draw at random only by run.seed, and never by hash() of a text",
        )

    def test_every_metric_says_what_it_is(self) -> None:
        """Every declared metric has a help text and a unit."""
        bare = [one.name for one in self.ready().kind.Metrics.declared("") if not one.help.strip() or not one.unit.strip()]
        expect(
            not bare,
            promised="every declared metric says what it measures, and in what unit",
            happened=f"these do not: {', '.join(name.strip('/') for name in bare)}",
            fix='declare it as Counter("What it counts", unit="groups")',
        )

    def test_every_declared_metric_is_emitted(self) -> None:
        """The suite's exercises provoke each declared metric once at least, except those in `rare_metrics`."""
        declared = {one.name.strip("/") for one in self.ready().kind.Metrics.declared("")}
        if not declared:
            pytest.skip("it declares no metrics")
        unknown = sorted(set(self.rare_metrics) - declared)
        expect(
            not unknown,
            promised="rare_metrics names declared metrics",
            happened=f"these are none: {', '.join(unknown)}",
            fix=f"declared are {', '.join(sorted(declared))}",
        )
        emitted = {name for options in (self.options, *self.variants) for name in self._emitted(options)}
        silent = sorted(declared - emitted - set(self.rare_metrics))
        expect(
            not silent,
            promised="each declared metric is emitted by somebody who uses the plugin",
            happened=f"whatever the suite did, these were not: {', '.join(silent)}",
            fix="emit them or remove them; if only some options make them, give those in `variants`; if only a real run does, say so in "
            "`rare_metrics`, each with the reason",
        )

    def _emitted(self, options: Mapping[str, Any]) -> set[str]:
        return {name.rpartition("/")[2] for plugin in self.exercise(options) for name in plugin.metrics.drain()}

"""The suite of engines: what one occupies, how its server starts, and a real server on a small model, spoken to as a run does."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from asyncrl.authoring import Plugin
from asyncrl.rollout.engine import EngineNeeds, EnginePlace, ServerSpec
from asyncrl.testing.engine_served import ServedRules
from asyncrl.testing.rules import expect


class EngineSuite(ServedRules):
    """Contract of an engine: what it occupies, and a server that speaks SGLang's native API.

    One server is started from the plugin's own command line, on the CPU with the default task's small model, and all rules share it. A
    subclass may also set:

    Attributes:
        model: a Hugging Face directory to serve instead.
        no_server: why no server can be started where the tests run, such as "needs a GPU"; the rules that need one are then skipped.
        gone_seconds: in which nothing must answer any more when the server's owner has ended.
    """

    def test_it_says_what_it_occupies(self) -> None:
        """`engine_needs` answers EngineNeeds; on the CPU it needs no GPU."""
        needs = self.host().one("engine_needs")()
        expect(
            isinstance(needs, EngineNeeds) and needs.gpus >= 0 and needs.cpus >= 0,
            promised="engine_needs answers EngineNeeds(gpus, cpus), neither below 0",
            happened=f"it answered {needs!r}",
            fix="return EngineNeeds(gpus=…, cpus=…)",
        )
        expect(
            not needs.gpus or self.facts().device != "cpu",
            promised="with device = cpu, an engine occupies no GPU",
            happened=f"it asks for {needs.gpus:g}",
            fix="return gpus=1 if self.run.device.startswith('cuda') else 0",
        )

    def test_it_says_how_its_server_starts(self) -> None:
        """`engine_server` answers a ServerSpec for the place it is given."""
        place = EnginePlace(3, Path("/models/some"), "127.0.0.1", 31_234, "cpu", "float32", 7, Path("/runs/some/engine-3.log"))
        spec = self.host().one("engine_server")(place=place)
        expect(
            isinstance(spec, ServerSpec) and spec.url.startswith("http") and all(isinstance(word, str) for word in spec.argv),
            promised="engine_server answers a ServerSpec: argv (texts), url, and what the server can do",
            happened=f"it answered {spec!r}",
            fix="return ServerSpec(argv=(…), url=f'http://{place.host}:{place.port}')",
        )
        expect(
            not spec.argv or (str(place.port) in spec.url and str(place.model) in " ".join(spec.argv)),
            promised="a server that is started serves place.model at place.host:place.port",
            happened=f"the command line is {' '.join(spec.argv)}, the address {spec.url}",
            fix="put place.model and place.port into the command line, and the same port into the url",
        )

    def test_its_server_ends_with_its_owner(self, request: pytest.FixtureRequest) -> None:
        """When whoever started it ends, nothing answers at its address any more."""
        server = self.running(request)
        if not server.spec.argv:
            pytest.skip("it attaches to a server that runs already")
        server.end()
        deadline = time.monotonic() + self.gone_seconds
        while server.answers() and time.monotonic() < deadline:
            time.sleep(0.1)
        expect(
            not server.answers(),
            promised="the server ends with the process that started it",
            happened=f"{self.gone_seconds:g} s after its owner ended it, something still answers at {server.spec.url}",
            fix="keep all its processes in the process group in which the command was started: no setsid, no daemon",
        )

    @classmethod
    def exercise(cls, options: Mapping[str, Any]) -> list[Plugin]:
        """Ask what it needs and how its server starts."""
        active = cls.make(options)
        host = cls.host(active)
        host.one("engine_needs")()
        host.one("engine_server")(
            place=EnginePlace(0, Path("/models/some"), "127.0.0.1", 31_234, "cpu", "float32", 0, Path("/runs/some/engine-0.log"))
        )
        return [active.plugin]

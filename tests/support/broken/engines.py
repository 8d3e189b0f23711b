"""Engines whose servers break one promise each."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import ClassVar

from asyncrl import EngineNeeds, EnginePlace, Plugin, ServerSpec, hookimpl

from broken.breaking import breaks

SERVER = Path(__file__).with_name("fake_server.py")


@breaks("")
class Right(Plugin):
    broken: ClassVar[str] = "nothing"
    gpus: ClassVar[float] = 0.0

    @hookimpl
    def engine_needs(self) -> EngineNeeds:
        return EngineNeeds(gpus=self.gpus)

    @hookimpl
    def engine_server(self, place: EnginePlace) -> ServerSpec:
        argv = (sys.executable, str(SERVER), str(place.port), str(place.model), self.broken)
        return ServerSpec(argv, self.url(place), {"PYTHONPATH": str(SERVER.parents[1])}, start_timeout=60.0)

    def url(self, place: EnginePlace) -> str:
        return f"http://{place.host}:{place.port}"


@breaks("", no_server="it only has tests for the rest")
class HasNoServerHere(Right):
    broken = "does not start"


@breaks("test_it_says_what_it_occupies")
class WantsAGpu(Right):
    gpus = 1.0


@breaks("test_it_says_how_its_server_starts", no_server="the address is wrong")
class AnswersElsewhere(Right):
    def url(self, place: EnginePlace) -> str:
        return f"http://{place.host}:1"


@breaks("test_its_server_starts")
class DoesNotStart(Right):
    broken = "does not start"


@breaks("test_it_generates_what_is_asked_for")
class GivesOneTokenMore(Right):
    broken = "one token more"


@breaks("test_greedy_is_repeatable")
class IsGreedyByChance(Right):
    broken = "greedy by chance"


@breaks("test_a_pause_loses_nothing")
class GeneratesWhilePaused(Right):
    broken = "generates while paused"


@breaks("test_an_update_from_disk_changes_the_weights")
class KeepsItsWeights(Right):
    broken = "keeps its weights"


@breaks("test_a_request_that_is_given_up_frees_its_place")
class IgnoresAborts(Right):
    broken = "ignores aborts"


@breaks("test_its_server_ends_with_its_owner", gone_seconds=1.0)
class OutlivesItsOwner(Right):
    broken = "outlives its owner"

"""Runs in which anything may happen, drawn by hypothesis: sizes, lengths, faults, publications, stalls and evaluations."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Any, Literal

from asyncrl import RunFacts
from asyncrl.rollout.engine import GenerateRequest
from asyncrl.simulation.engine import Plan, ScriptedEngine
from asyncrl.simulation.script import EngineEvent
from hypothesis import strategies as st
from simulated import facts
from watched import WatchedRun

PLENTY = 64
"""Slots of an engine that let no request wait."""


@dataclass(frozen=True)
class Trouble:
    """Something happens to an engine at `at` seconds and has passed `lasts` seconds later."""

    engine: int
    at: float
    kind: Literal["die", "hang", "slow"]
    lasts: float

    def events(self, engines: int) -> tuple[EngineEvent, EngineEvent]:
        engine, end = self.engine % engines, self.at + self.lasts
        if self.kind == "slow":
            return EngineEvent(engine, self.at, "slow", 7.0), EngineEvent(engine, end, "slow", 1.0)
        return EngineEvent(engine, self.at, self.kind), EngineEvent(engine, end, "revive")


@dataclass(frozen=True)
class Case:
    """A run with all that happens in it. `failing` is the share of requests that fail, `cursed` whether some prompts always do."""

    seed: int
    steps: int
    batch_size: int
    group_size: int
    spare: int
    slots: int
    engines: int
    failing: float
    cursed: bool
    troubles: tuple[Trouble, ...]
    filtered: bool
    closely: bool
    on_unused: str
    publish_interval: int
    publish_seconds: float
    staggered: bool
    pause_mode: Literal["retract", "in_place"]
    train_seconds: tuple[float, ...]
    eval_interval: int

    @property
    def undisturbed(self) -> bool:
        """Whether every sample that is started also ends well; engines may be slow."""
        return not (self.failing or self.cursed or self.filtered or any(each.kind != "slow" for each in self.troubles))

    @property
    def facts(self) -> RunFacts:
        return facts(
            batch_size=self.batch_size,
            group_size=self.group_size,
            max_concurrent_samples=self.group_size + self.spare,
            steps=self.steps,
            publish_interval=self.publish_interval,
            max_retries=2,
            on_unused=self.on_unused,
            seed=self.seed,
        )

    def script(self, request: GenerateRequest, number: int) -> Plan:
        rng = random.Random(self.seed * 1_000_003 + number)
        cursed, fails = self.cursed and request.affinity % 7 == 3, rng.random() < self.failing
        # What hangs holds slots until its deadline: with few of them, or always for the same prompts, nothing else could be generated
        # in between, and the run would rightly end because so many groups in a row had failed.
        kinds = ["error", "abort"] if cursed or self.slots != PLENTY else ["error", "abort", "hang"]
        fault: Any = rng.choice(kinds) if cursed or fails else ""
        return Plan(
            tokens=1 + int(rng.expovariate(0.08)) % 64,
            first=rng.choice([0.0, 0.25]),
            per_token=rng.choice([0.0625, 0.125]),
            fault=fault,
            fault_after=rng.randrange(8),
        )

    def train(self, step: int) -> float:
        return self.train_seconds[step % len(self.train_seconds)]


CASES = st.builds(
    Case,
    seed=st.integers(0, 10_000),
    steps=st.integers(1, 10),
    batch_size=st.integers(1, 5),
    group_size=st.integers(1, 4),
    spare=st.integers(0, 20),
    slots=st.sampled_from([1, 3, PLENTY]),
    engines=st.integers(1, 3),
    failing=st.sampled_from([0.0, 0.0, 0.05, 0.2]),
    cursed=st.booleans(),
    troubles=st.lists(
        st.builds(
            Trouble,
            engine=st.integers(0, 2),
            at=st.integers(0, 600).map(lambda tenths: tenths / 10),
            kind=st.sampled_from(["slow", "die", "hang"]),
            lasts=st.sampled_from([0.5, 5.0, 15.0]),
        ),
        max_size=4,
    ).map(tuple),
    filtered=st.booleans(),
    closely=st.booleans(),
    on_unused=st.sampled_from(["drop", "retry"]),
    publish_interval=st.integers(1, 3),
    publish_seconds=st.sampled_from([0.0, 0.3]),
    staggered=st.booleans(),
    pause_mode=st.sampled_from(["retract", "in_place"]),
    train_seconds=st.lists(st.sampled_from([0.0, 0.1, 1.0, 4.0, 300.0]), min_size=1, max_size=4).map(tuple),
    eval_interval=st.sampled_from([0, 0, 1, 3]),
)


class StaggeredRun(WatchedRun):
    """New weights reach one engine after the other, at random times, while the others go on."""

    async def publish(self, update_norm: float) -> int:
        self.version += 1
        rng = random.Random(self.facts.seed + self.version)
        await asyncio.gather(*(self._update(engine, rng.choice([0.0, 0.2, 1.7])) for engine in self.engines))
        self.service.on_published(self.version)
        return self.version

    async def _update(self, engine: ScriptedEngine, delay: float) -> None:
        await asyncio.sleep(delay)
        await engine.pause(self._pause_mode)
        await asyncio.sleep(self._publish_seconds)
        engine.publish(self.version)
        await engine.resume()

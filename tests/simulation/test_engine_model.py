"""The scripted engine agrees with a naive model that advances every request token by token."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from asyncrl.rollout.engine import GenerateRequest
from asyncrl.samples import Completion, SamplingParams, merge_spans
from asyncrl.simulation.clock import run_virtual
from asyncrl.simulation.engine import Plan, ScriptedEngine
from hypothesis import given, settings
from hypothesis import strategies as st

SLOTS = 4
Event = tuple[float, str, Any]


def load_factor(running: int) -> float:
    return 1.0 + 0.37 * (running - 1)


def random_events(dice: random.Random) -> tuple[list[Plan], list[Event]]:
    """Arrivals, publications, pauses with their ends, changes of speed, and callers that give up, in the order of their times."""
    plans = [
        Plan(tokens=dice.randint(1, 30), first=dice.choice([0.0, dice.random()]), per_token=0.01 + dice.random() / 4)
        for _ in range(dice.randint(1, 14))
    ]
    events: list[Event] = [(dice.random() * 10, "arrive", number) for number in range(len(plans))]
    for number in range(len(plans)):
        if dice.random() < 0.15:
            events.append((next(time for time, _, who in events if who == number) + dice.random() * 5, "cancel", number))
    moment = 0.0
    for version in range(1, dice.randint(1, 8)):
        moment += dice.random() * 4
        if dice.random() < 0.4:
            events.append((moment, "publish", version))
            continue
        mode = dice.choice(["retract", "in_place"])
        length = dice.random() * 2
        events += [(moment, "pause", mode), (moment + length / 2, "publish", version), (moment + length, "resume", mode)]
        moment += length
    events += [(dice.random() * 12, "slow", 0.5 + 2 * dice.random()) for _ in range(dice.randint(0, 3))]
    return plans, sorted(events, key=lambda event: event[0])


@dataclass
class Naive:
    """One request of the model: `first` and `token` are the work left until generating begins and until its next token."""

    plan: Plan
    first: float = 0.0
    token: float = 0.0
    versions: list[int] = field(default_factory=list)
    ended: float = -1.0

    @property
    def left(self) -> float:
        return self.first + self.token


def naive(plans: list[Plan], events: list[Event], *, loaded: bool) -> list[Naive]:
    requests = [Naive(plan, plan.first, plan.per_token) for plan in plans]
    queue: deque[Naive] = deque()
    running: list[Naive] = []
    now, version, slow, paused = 0.0, 0, 1.0, False
    pending = deque(events)
    while pending or running or queue:
        while queue and len(running) < SLOTS and not paused:
            running.append(queue.popleft())
        rate = 0.0 if paused else 1 / (slow * (load_factor(max(1, len(running))) if loaded else 1.0))
        until = min((request.left for request in running), default=np.inf) / rate if rate else np.inf
        if pending and pending[0][0] <= now + until:
            moment, kind, what = pending.popleft()
        else:
            moment, kind, what = now + until, "token", None
        for request in running:
            done = (moment - now) * rate
            request.first, request.token = max(0.0, request.first - done), request.token - max(0.0, done - request.first)
        now = moment
        if kind == "token":
            ready = min(running, key=lambda request: request.left)
            ready.versions.append(version)
            ready.first, ready.token = 0.0, ready.plan.per_token
            if len(ready.versions) == ready.plan.tokens:
                ready.ended = now
                running.remove(ready)
        elif kind == "arrive":
            queue.append(requests[what])
        elif kind == "cancel":
            running = [request for request in running if request is not requests[what]]
            queue = deque(request for request in queue if request is not requests[what])
        elif kind == "publish":
            version = what
        elif kind == "slow":
            slow = what
        else:
            paused = kind == "pause"
            if kind == "resume" and what == "retract":
                for request in running:
                    request.first = request.plan.first
    return requests


def scripted(plans: list[Plan], events: list[Event], *, loaded: bool) -> list[tuple[float, Completion] | None]:
    async def main() -> list[tuple[float, Completion] | None]:
        clock = asyncio.get_running_loop().time
        engine = ScriptedEngine(
            slots=SLOTS, script=lambda request, number: plans[request.affinity], load_factor=load_factor if loaded else None
        )

        async def ask(number: int) -> tuple[float, Completion]:
            completion = await engine.generate(GenerateRequest(np.zeros(1, np.int32), SamplingParams(64), number))
            return clock(), completion

        asked: dict[int, asyncio.Task[tuple[float, Completion]]] = {}
        for moment, kind, what in events:
            await asyncio.sleep(moment - clock())
            if kind == "arrive":
                asked[what] = asyncio.create_task(ask(what))
            elif kind == "cancel":
                asked[what].cancel()
            elif kind == "publish":
                engine.publish(what)
            elif kind == "slow":
                engine.slowdown = what
            elif kind == "pause":
                await engine.pause(what)
            else:
                await engine.resume()
        results = await asyncio.gather(*(asked[number] for number in range(len(plans))), return_exceptions=True)
        assert engine.in_flight == 0
        return [None if isinstance(result, BaseException) else result for result in results]

    return run_virtual(main())


@pytest.mark.parametrize("loaded", [False, True])
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_tokens_versions_and_times_are_those_of_the_naive_model(loaded: bool, seed: int) -> None:
    plans, events = random_events(random.Random(seed))
    for expected, result in zip(naive(plans, events, loaded=loaded), scripted(plans, events, loaded=loaded), strict=True):
        if result is None:
            assert expected.ended < 0
            continue
        ended, completion = result
        assert ended == pytest.approx(expected.ended, abs=1e-6)
        assert completion.spans == merge_spans((version, 1) for version in expected.versions)
        assert len(completion.token_ids) == expected.plan.tokens

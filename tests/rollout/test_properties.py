"""Random lengths, faults, publications and plugins: what must hold at every moment of every run."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from asyncrl import BufferOptions, Group, Plugin, PutOutcome, RunFacts, hookimpl
from asyncrl.ledger import Place
from asyncrl.rollout.engine import GenerateRequest
from asyncrl.simulation.engine import Plan
from asyncrl.simulation.run import SimulatedRun
from asyncrl_fifo import Fifo
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulated import assert_balanced, facts, host, oldest_age, simulate, trained_prompts


class Measured(Fifo):
    """`fifo` that knows how much it ever held."""

    def __init__(self, options: BufferOptions, run: RunFacts) -> None:
        super().__init__(options, run)
        self.most = 0
        self.capacity = options.capacity(run.batch_size)

    def buffer_put(self, group: Group) -> PutOutcome:
        outcome = super().buffer_put(group)
        self.most = max(self.most, len(self._groups))
        return outcome

    buffer_put = hookimpl(buffer_put)


class Story(Plugin):
    """Every prompt's end, as it was told."""

    @hookimpl
    def on_group_ended(self, prompt_id: int, fate: str, tokens: int) -> None:
        fates = self.__dict__.setdefault("fates", {})
        assert prompt_id not in fates, f"prompt {prompt_id} ended as {fates[prompt_id]}, then as {fate}"
        fates[prompt_id] = fate


def troubled(seed: int, trouble: float) -> Any:
    """A script in which a share `trouble` of the requests ends badly."""

    def script(request: GenerateRequest, number: int) -> Plan:
        rng = random.Random(seed * 1_000_003 + number)
        fault: Any = rng.choice(["error", "abort", "hang"]) if rng.random() < trouble else ""
        return Plan(
            tokens=1 + int(rng.expovariate(0.08)) % 64,
            first=rng.choice([0.0, 0.25]),
            per_token=rng.choice([0.0625, 0.125]),
            fault=fault,
            fault_after=rng.randrange(8),
        )

    return script


@settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 10_000),
    trouble=st.sampled_from([0.0, 0.05, 0.2]),
    scheduler=st.sampled_from(["sample", "group", "lockstep"]),
    bound=st.sampled_from([None, 0, 1, 3]),
    on_unused=st.sampled_from(["drop", "retry"]),
    filtered=st.booleans(),
    batch_size=st.integers(1, 5),
    group_size=st.integers(1, 4),
    spare=st.integers(0, 20),
    capacity_factor=st.sampled_from([1.0, 1.5, 3.0]),
    publish_interval=st.integers(1, 3),
    pause_mode=st.sampled_from(["retract", "in_place"]),
    publish_seconds=st.sampled_from([0.0, 0.3]),
)
def test_invariants(
    seed: int,
    trouble: float,
    scheduler: str,
    bound: int | None,
    on_unused: str,
    filtered: bool,
    batch_size: int,
    group_size: int,
    spare: int,
    capacity_factor: float,
    publish_interval: int,
    pause_mode: Any,
    publish_seconds: float,
) -> None:
    """Field reports 2, 7, 21: one place each, none trained twice, no token past the bound, cap and capacity kept, books balanced."""
    run = facts(
        batch_size=batch_size,
        group_size=group_size,
        max_concurrent_samples=group_size + spare,
        steps=5,
        publish_interval=publish_interval,
        max_retries=2,
        on_unused=on_unused,
    )
    plugins = [("scheduler", scheduler, {}), ("buffer", Measured, {"capacity_factor": capacity_factor}), ("observers", Story, {})]
    if bound is not None:
        plugins.append(("staleness", "max-gap", {"max_staleness": bound}))
    if filtered and group_size > 1:
        plugins.append(("filters", "reward-variance", {}))
    rng = random.Random(seed)

    async def reward(prompt: Any, sample: Any) -> float:
        await asyncio.sleep(rng.choice([0.0, 0.0, 0.5]))
        if rng.random() < trouble / 4:
            raise ValueError("a reward that fails")
        return float(rng.random() < 0.5)

    plugged = host(run, *plugins, reward=reward)  # type: ignore[arg-type]

    async def watch(simulated: SimulatedRun) -> None:
        service = simulated.service
        for _ in range(20_000):
            await asyncio.sleep(0.17)
            service.check()
            books = service.books()
            assert_balanced(books)
            assert service._loop.samples_in_flight <= run.max_concurrent_samples
            places = [service.ledger.count(place) for place in Place]
            assert sum(places) == books["unfinished"]

    watching: list[asyncio.Task[None]] = []

    async def during(simulated: SimulatedRun) -> None:
        watching.append(asyncio.ensure_future(watch(simulated)))
        await watching[0]

    simulated = simulate(
        run,
        plugged,
        script=troubled(seed, trouble),
        engines=1 + seed % 2,
        request_timeout=20.0,
        during=during,
        pause_mode=pause_mode,
        publish_seconds=publish_seconds,
        train_seconds=lambda step: random.Random(seed + step).choice([0.1, 1.0, 4.0]),
        max_attempts=2,
        on_unused=on_unused,
    )
    assert watching[0].cancelled(), "the watch failed"
    trained = trained_prompts(simulated)
    assert len(trained) == len(set(trained)) == run.steps * run.batch_size
    assert all(batch.prompt_ids.tolist() == sorted(batch.prompt_ids.tolist()) for batch in simulated.batches)
    if bound is not None:
        assert oldest_age(simulated) <= bound
    if scheduler == "lockstep":
        assert oldest_age(simulated) == 0
    buffer = plugged.plugin("buffer")
    assert buffer.most <= buffer.capacity
    assert all(engine.most_in_flight <= run.max_concurrent_samples for engine in simulated.engines)
    books = simulated.service.books()
    fates = plugged.plugin("observers").fates
    assert sorted(prompt_id for prompt_id, fate in fates.items() if fate == "trained") == sorted(trained)
    assert len(fates) + books["unfinished"] == books["issued"]
    tokens = books["tokens"]
    assert tokens["trained"] == sum(int(batch.loss_mask.sum()) for batch in simulated.batches)
    assert sum(tokens.values()) == simulated.service.tokens_generated

"""Runs under the virtual clock, out of real plugins: what the tests of the rollout side share."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np
from asyncrl import EvalSet, Plugin, Prompt, RunFacts, Sample, Score, hookimpl
from asyncrl.host import Active, Host
from asyncrl.rollout.engine import GenerateRequest
from asyncrl.simulation.clock import run_virtual
from asyncrl.simulation.engine import Plan, ScriptedEngine
from asyncrl.simulation.run import SimulatedRun
from asyncrl_fifo import Fifo
from asyncrl_group import GroupScheduler
from asyncrl_lockstep import Lockstep
from asyncrl_max_gap import MaxGap
from asyncrl_none import NoBound
from asyncrl_paced import Paced
from asyncrl_priority import Priority
from asyncrl_reward_variance import RewardVariance
from asyncrl_sample import SampleScheduler
from asyncrl_single_turn import SingleTurn

KINDS: dict[str, type[Plugin]] = {
    "fifo": Fifo,
    "group": GroupScheduler,
    "lockstep": Lockstep,
    "max-gap": MaxGap,
    "none": NoBound,
    "priority": Priority,
    "paced": Paced,
    "reward-variance": RewardVariance,
    "sample": SampleScheduler,
    "single-turn": SingleTurn,
}
Reward = Callable[[Prompt, Sample], Awaitable[float]]


async def first_token_is_odd(prompt: Prompt, sample: Sample) -> float:
    return float(sample.token_ids[0] % 2)


class CountingTask(Plugin):
    """Prompt n holds the tokens of n in base 10; the reward is a function of the test's."""

    reward: Reward = staticmethod(first_token_is_odd)

    @hookimpl
    def train_prompt(self, position: int) -> Prompt:
        return Prompt(
            position, np.array([int(digit) for digit in str(position)], np.int32), {"n": position}, f"prompt {position}"
        )

    @hookimpl
    async def score_sample(self, prompt: Prompt, sample: Sample) -> Score:
        return Score(await self.reward(prompt, sample))

    @hookimpl
    def eval_sets(self) -> tuple[EvalSet, ...]:
        return ()


def facts(**changes: Any) -> RunFacts:
    """A small run: batches of 4 groups of 2, 8 samples in flight, 6 steps."""
    return RunFacts(
        **{"batch_size": 4, "group_size": 2, "max_concurrent_samples": 8, "steps": 6, "max_new_tokens": 64, **changes}
    )


def host(run: RunFacts, *plugins: tuple[str, str | type[Plugin], dict[str, Any]], reward: Reward | None = None) -> Host:
    """The default plugins, replaced by or together with (slot, name or class, options)."""
    chosen: dict[str, list[tuple[str | type[Plugin], dict[str, Any]]]] = {
        "task": [(CountingTask, {})],
        "producer": [("single-turn", {})],
        "scheduler": [("sample", {})],
        "buffer": [("fifo", {})],
        "staleness": [("none", {})],
    }
    for slot in {slot for slot, _, _ in plugins}:
        chosen[slot] = [(kind, options) for where, kind, options in plugins if where == slot]
    actives = []
    for slot, entries in chosen.items():
        for kind, options in entries:
            name = kind if isinstance(kind, str) else kind.__name__
            make = KINDS[kind] if isinstance(kind, str) else kind
            make.slot, make.name = slot, name
            plugin = make(make.Options(**options), run)
            if reward is not None and isinstance(plugin, CountingTask):
                plugin.reward = reward
            actives.append(Active(slot, name, f"asyncrl-plugin-{name}", "0.1.0", plugin))
    return Host(actives)


def same_length(request: GenerateRequest, number: int) -> Plan:
    """Every request takes one second."""
    return Plan(tokens=8, per_token=0.125)


def long_tail(seed: int, longest: int = 64) -> Callable[[GenerateRequest, int], Plan]:
    """Requests of 1 to `longest` tokens, few of them long, at 1/8 s a token; a function of seed and request number."""

    def script(request: GenerateRequest, number: int) -> Plan:
        tokens = min(longest, 1 + int(random.Random(seed * 1_000_003 + number).expovariate(4 / longest)))
        return Plan(tokens=tokens, per_token=0.125, finish_reason="length" if tokens == longest else "stop")

    return script


def simulate(
    run: RunFacts,
    plugins: Host,
    *,
    script: Callable[[GenerateRequest, int], Plan] = same_length,
    engines: int = 1,
    slots: int = 64,
    request_timeout: float = 600.0,
    during: Callable[[SimulatedRun], Awaitable[None]] | None = None,
    limit: float = 100_000.0,
    **options: Any,
) -> SimulatedRun:
    """Run to the end and return the run; `during` runs beside it."""

    async def main() -> SimulatedRun:
        scripted = [
            ScriptedEngine(f"engine-{index}", slots=slots, script=script, request_timeout=request_timeout)
            for index in range(engines)
        ]
        simulated = SimulatedRun(plugins, run, scripted, **options)
        beside = asyncio.ensure_future(during(simulated)) if during else None
        try:
            await simulated.run()
        finally:
            if beside is not None:
                beside.cancel()
                await asyncio.gather(beside, return_exceptions=True)
        return simulated

    return run_virtual(main(), limit=limit)


def trained_prompts(run: SimulatedRun) -> list[int]:
    return [int(prompt_id) for batch in run.batches for prompt_id in batch.prompt_ids]


def oldest_age(run: SimulatedRun) -> int:
    """Greatest age in versions of any trained token."""
    return max(int((batch.version - batch.versions[batch.loss_mask]).max()) for batch in run.batches)


def assert_balanced(books: dict[str, Any]) -> None:
    assert books["issued"] == books["trained"] + sum(books["dropped"].values()) + books["unfinished"]


def values(deltas: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    """What was recorded under a metric's full name, by label."""
    return next((delta[name] for delta in deltas if name in delta), {})

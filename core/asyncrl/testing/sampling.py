"""A producer at work on one event loop, with the sampler that core hands it, around a scripted engine."""

from __future__ import annotations

import numpy as np

from asyncrl.authoring import RunFacts
from asyncrl.host import Host
from asyncrl.rollout.engine import Generates
from asyncrl.rollout.group_sampler import GroupSampler
from asyncrl.rollout.metrics import RolloutMetrics
from asyncrl.rollout.pool import EnginePool
from asyncrl.samples import Group, Prompt, Sample, SamplingParams, Score
from asyncrl.simulation.engine import ScriptedEngine
from asyncrl.simulation.script import Plan


def make_prompt(prompt_id: int) -> Prompt:
    """Return a prompt of four tokens that are a function of its id."""
    return Prompt(prompt_id, np.array([prompt_id % 97, 5, 6, 7], np.int32), {"answer": prompt_id}, f"suite:{prompt_id}")


def make_sampler(pool: Generates, run: RunFacts, *, reward: float = 1.0) -> GroupSampler:
    """Return the sampler that core hands to a producer; every sample has the same reward."""

    async def score(prompt: Prompt, sample: Sample) -> Score:
        return Score(reward)

    params = SamplingParams(run.max_new_tokens, run.temperature, run.top_p, run.top_k)
    return GroupSampler(
        pool, score, group_size=run.group_size, params=params, max_retries=run.max_retries, metrics=RolloutMetrics("rollout")
    )


async def one_group(host: Host, run: RunFacts) -> Group:
    """Have the producer of `host` make the group of prompt 3 on an engine that answers at once."""
    engine = ScriptedEngine(script=lambda request, number: Plan(tokens=4, per_token=0.0))
    sampler = make_sampler(EnginePool([engine], health_interval=0), run)
    group: Group = await host.one("produce")(prompt=make_prompt(3), sampler=sampler, done=lambda sample: None)
    return group

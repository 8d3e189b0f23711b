"""The metrics answer the three questions: who waits for whom, how stale the data is, and what was wasted."""

from __future__ import annotations

from typing import Any

import pytest
from asyncrl import Prompt, Sample
from asyncrl.metrics import Registry
from asyncrl.rollout.metrics import RolloutMetrics
from asyncrl.simulation.run import SimulatedRun
from simulated import facts, first_token_is_odd, host, long_tail, simulate, values


async def often_alike(prompt: Prompt, sample: Sample) -> float:
    return 1.0 if prompt.prompt_id % 4 == 0 else await first_token_is_odd(prompt, sample)


@pytest.fixture(scope="module")
def finished() -> tuple[SimulatedRun, list[dict[str, Any]]]:
    run = facts(max_concurrent_samples=24, steps=12)
    plugins = host(run, ("staleness", "max-gap", {"max_staleness": 1}), ("filters", "reward-variance", {}), reward=often_alike)
    simulated = simulate(run, plugins, script=long_tail(9))
    return simulated, simulated.service.drain_metrics()


def test_every_value_is_declared(finished: tuple[SimulatedRun, list[dict[str, Any]]]) -> None:
    registry = Registry(RolloutMetrics.declared("rollout"))
    registry.add(finished[1][0])


def test_groups_and_tokens_are_counted_by_fate(finished: tuple[SimulatedRun, list[dict[str, Any]]]) -> None:
    simulated, deltas = finished
    books = simulated.service.books()
    assert values(deltas, "rollout/dropped") == books["dropped"]
    assert books["dropped"].keys() == {"stale", "no_variance"}
    assert values(deltas, "rollout/groups_trained") == {"": books["trained"]}
    tokens = values(deltas, "rollout/tokens")
    assert tokens.pop("trained") == books["tokens"]["trained"]
    assert sum(tokens.values()) == books["tokens"]["dropped"]
    assert values(deltas, "rollout/tokens_unfinished") == {"": books["tokens"]["unfinished"]}


def test_lengths_of_trained_and_dropped_samples_are_told_apart(finished: tuple[SimulatedRun, list[dict[str, Any]]]) -> None:
    simulated, deltas = finished
    books = simulated.service.books()
    trained, dropped = values(deltas, "rollout/length_trained")[""], values(deltas, "rollout/length_dropped")[""]
    assert trained[:2] == [2 * books["trained"], books["tokens"]["trained"]]
    assert dropped[:2] == [2 * sum(books["dropped"].values()), books["tokens"]["dropped"]]


def test_shares_of_ages_are_those_of_the_trained_tokens(finished: tuple[SimulatedRun, list[dict[str, Any]]]) -> None:
    simulated, deltas = finished
    shares = {age: total for age, (_, total, *_) in values(deltas, "rollout/age_share").items()}
    assert set(shares) <= {"0", "1"}
    assert sum(shares.values()) == pytest.approx(len(simulated.batches))
    of_age_1 = [float((batch.version - batch.versions[batch.loss_mask] == 1).mean()) for batch in simulated.batches]
    assert shares["1"] == pytest.approx(sum(of_age_1))


def test_rewards_are_measured_before_and_after_the_filters(finished: tuple[SimulatedRun, list[dict[str, Any]]]) -> None:
    simulated, deltas = finished
    count, total, low, high = values(deltas, "rollout/reward_trained")[""]
    assert (count, total) == (2 * simulated.service.books()["trained"], sum(float(b.rewards.sum()) for b in simulated.batches))
    assert (low, high) == (0.0, 1.0)
    assert values(deltas, "rollout/reward")[""][0] > count

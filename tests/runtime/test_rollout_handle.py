"""The rollout actor dies at any moment: another goes on for it, the books stay exact, and the trainer keeps what it has."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
from asyncrl import Prompt, Sample
from asyncrl.errors import ActorLost, RunError
from asyncrl.runtime.restarts import Restarts
from asyncrl.runtime.rollout_handle import RolloutHandle
from hypothesis import given, settings
from hypothesis import strategies as st
from mortal import Death, World
from simulated import assert_balanced, facts, host

STEPS = 8
METHODS = ("take_batch", "trained", "weights", "progress", "take_over", "start")


pytestmark = pytest.mark.usefixtures("quiet")


async def length_is_odd(prompt: Prompt, sample: Sample) -> float:
    return float(len(sample.token_ids) % 2)


def check(world: World, *, bound: int | None = None) -> None:
    """Every prompt was trained once, or dropped with a reason, or is still open; the books say the same; and they never went back."""
    trained = [int(prompt_id) for batch in world.batches for prompt_id in batch.prompt_ids]
    assert len(world.batches) == world.facts.steps
    assert len(trained) == len(set(trained)) == world.facts.steps * world.facts.batch_size
    books = world.books
    assert_balanced(books)
    assert books["trained"] == len(trained)
    assert max(trained) < books["issued"]
    assert not world.still_open & set(trained) and len(world.still_open) in (0, books["unfinished"])
    assert books["tokens"]["trained"] == sum(int(batch.loss_mask.sum()) for batch in world.batches)
    ages = [int(batch.version - batch.versions[batch.loss_mask].min()) for batch in world.batches]
    assert min(ages) >= 0 and (bound is None or max(ages) <= bound)
    assert books["staleness"]["max"] == max(ages)
    assert [engine.asked_unfit for engine in world.engines] == [0, 0]
    for record in (progress.record for progress in world.told):
        assert record.ledger["handed_out"] == record.books["trained"] + world.facts.batch_size * len(record.with_trainer)
    for earlier, later in zip(world.told, world.told[1:], strict=False):
        assert later.record.serial > earlier.record.serial
        assert later.tokens_generated >= earlier.tokens_generated
        for kind in ("issued", "trained"):
            assert later.record.books[kind] >= earlier.record.books[kind]
        for reason, count in earlier.record.books["dropped"].items():
            assert later.record.books["dropped"][reason] >= count


DEATH = st.builds(Death, st.sampled_from(METHODS), st.integers(1, 6), st.booleans())
DEATHS = st.lists(DEATH.filter(lambda death: (death.method, death.nth) != ("start", 1)), max_size=5)


@pytest.mark.parametrize("scheduler", ["sample", "group", "paced", "lockstep"])
@settings(max_examples=20, derandomize=True, deadline=None)
@given(
    fatal=DEATHS,
    times=st.lists(st.integers(0, 400).map(lambda tenths: 3.2 + tenths / 10), max_size=3),
    seed=st.integers(0, 100),
    interval=st.sampled_from([1, 1, 3]),
    bound=st.sampled_from([None, 1, 2]),
    on_stale=st.sampled_from(["drop", "retry", "wait"]),
    filtered=st.booleans(),
    on_unused=st.sampled_from(["drop", "retry"]),
    train_seconds=st.sampled_from([0.2, 1.0, 6.0]),
    poll_seconds=st.sampled_from([0.015, 1.0]),
)
def test_whenever_it_dies_every_prompt_is_trained_once_or_ends_with_a_reason(
    scheduler: str,
    fatal: list[Death],
    times: list[float],
    seed: int,
    interval: int,
    bound: int | None,
    on_stale: str,
    filtered: bool,
    on_unused: str,
    train_seconds: float,
    poll_seconds: float,
) -> None:
    if scheduler == "paced" and bound is None:
        bound = 1
    run = facts(steps=STEPS, publish_interval=interval, on_unused=on_unused)
    plugins = [("scheduler", scheduler, {})]
    if bound is not None:
        plugins.append(("staleness", "max-gap", {"max_staleness": bound, "on_stale": on_stale}))
    if filtered:
        plugins.append(("filters", "reward-variance", {}))
    world = World(
        run,
        lambda: host(run, *plugins, reward=length_is_odd),
        seed,
        fatal=fatal,
        times=times,
        on_unused=on_unused,
        train_seconds=train_seconds,
        poll_seconds=poll_seconds,
    ).run()
    check(world, bound=bound)
    assert world.restarts.used <= world.deaths


@pytest.mark.parametrize("method", ["take_batch", "trained", "weights"])
@pytest.mark.parametrize("answered", [False, True])
@pytest.mark.parametrize("poll_seconds", [0.015, 1.0])
@pytest.mark.parametrize("scheduler", ["sample", "lockstep"])
def test_a_call_that_was_interrupted_is_made_again_unless_it_had_its_effect(
    method: str, answered: bool, poll_seconds: float, scheduler: str
) -> None:
    """With the short poll, the books tell of the effect although the answer is lost."""
    run = facts(steps=STEPS)
    plugins = ("scheduler", scheduler, {})
    world = World(run, lambda: host(run, plugins), 1, fatal=[Death(method, 3, answered)], poll_seconds=poll_seconds).run()
    check(world)
    assert world.restarts.used == world.deaths - 1 == 1  # the last one is ended with the run
    assert world.handle.metrics.drain()["rollout/restarts"] == {"": 1}


def test_an_actor_that_dies_while_it_takes_over_is_followed_by_another() -> None:
    run = facts(steps=STEPS)
    world = World(run, lambda: host(run), 1, fatal=[Death("take_batch", 2, True), Death("take_over", 1, True)]).run()
    check(world)
    assert world.restarts.used == 2


@pytest.mark.parametrize("dies", [False, True])
async def test_an_actor_that_never_began_is_ended_with_its_task(dies: bool) -> None:
    """A run that goes back once more, because what it starts died meanwhile, makes another one."""
    ended: list[Any] = []

    async def kill(actor: Any) -> None:
        ended.append(actor)

    async def close_task() -> None:
        if dies:
            raise ActorLost("it died")

    actor = SimpleNamespace(close_task=SimpleNamespace(remote=close_task))
    with pytest.raises(ActorLost) if dies else contextlib.nullcontext():
        await RolloutHandle(lambda: actor, Restarts(0), kill=kill).close_task()
    assert ended == [actor]


def test_one_death_too_many_ends_the_run() -> None:
    run = facts(steps=STEPS)
    fatal = [Death("take_batch", 2, True), Death("trained", 3, False)]
    with pytest.raises(RunError, match="the rollout actor: its process died.* once more often than max_restarts = 1 allows"):
        World(run, lambda: host(run), 1, fatal=fatal, max_restarts=1).run()


@settings(max_examples=40, derandomize=True, deadline=None)
@given(
    times=st.lists(st.integers(0, 600).map(lambda tenths: 3.2 + tenths / 10), max_size=4),
    lost=st.lists(st.integers(1, STEPS), max_size=3),
    save_interval=st.sampled_from([1, 2, 3]),
    seed=st.integers(0, 100),
    filtered=st.booleans(),
    poll_seconds=st.sampled_from([0.015, 0.04, 1.0]),
)
def test_whoever_dies_each_group_is_recorded_once(
    times: list[float], lost: list[int], save_interval: int, seed: int, filtered: bool, poll_seconds: float
) -> None:
    """Also one whose group died with a rollout actor, and was produced once more when the trainer was lost as well."""
    run = facts(steps=STEPS)
    plugins = [("filters", "reward-variance", {})] * filtered
    world = World(
        run,
        lambda: host(run, *plugins, reward=length_is_odd),
        seed,
        times=times,
        lost=lost,
        save_interval=save_interval,
        poll_seconds=poll_seconds,
    ).run()
    trained = [int(prompt_id) for batch in world.batches for prompt_id in batch.prompt_ids]
    assert len(trained) == len(set(trained)) == STEPS * run.batch_size
    assert len(world.trace) == len(set(world.trace))
    if not times:
        assert set(trained) <= set(world.trace), "only what an actor did not tell before it died is missing"

"""What enters the buffer, what leaves it, who waits, and that nothing is lost on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest
from asyncrl import BatchView, Group, Mask, Plugin, PutOutcome, Taken, accepted, hookimpl, taken
from asyncrl.errors import PluginFailed
from asyncrl.host import Host
from asyncrl.ledger import Ledger, Place
from asyncrl.rollout.claims import Claims
from asyncrl.rollout.gate import Gate
from asyncrl.rollout.metrics import RolloutMetrics
from asyncrl.rollout.verdicts import NOTHING
from asyncrl.samples import Prompt, Sample, Status, full_mask
from asyncrl.simulation.clock import run_virtual
from asyncrl_fifo import Fifo
from simulated import facts, host, simulate, trained_prompts, values


def group(
    prompt_id: int, version: int = 0, *, rewards: tuple[float, ...] = (0.0, 1.0), status: Status = Status.COMPLETED
) -> Group:
    tokens = np.zeros(3, np.int32)
    samples = tuple(
        Sample(tokens, np.zeros(3, np.float32), full_mask(3), ((version, 3),), status, reward, "") for reward in rewards
    )
    return Group(Prompt(prompt_id, tokens), samples)


class Bench:
    """A gate with a ledger, and prompts to put through it."""

    def __init__(self, plugins: Host, on_unused: str = "drop", **changes: int) -> None:
        self.ledger = Ledger()
        self.metrics = RolloutMetrics("rollout")
        self.run = facts(**changes)
        self.gate = Gate(
            plugins, self.ledger, Claims(plugins, self.run), self.run, self.metrics, on_unused=on_unused, wait_warning=30.0
        )

    def put(self, *, make: Callable[..., Group] = group, **options: object) -> int:
        prompt_id = self.ledger.issue()
        finished = make(prompt_id, **options)
        self.ledger.generated(prompt_id, finished.num_tokens)
        self.gate.put(finished)
        self.ledger.check()
        return prompt_id


def bench(*plugins: tuple[str, str | type[Plugin], dict[str, object]], **changes: object) -> Bench:
    return Bench(host(facts(**{k: v for k, v in changes.items() if k != "on_unused"}), *plugins), **changes)  # type: ignore[arg-type]


def test_finished_groups_beyond_the_capacity_wait_and_enter_in_order_as_room_appears() -> None:
    async def main() -> None:
        world = bench()
        for _ in range(11):
            world.put()
        assert (world.gate.store.size, len(world.gate.waiting)) == (8, 3)
        await asyncio.sleep(10.0)
        first = await world.gate.take_groups(0, "a batch")
        assert [each.prompt_id for each in first] == [0, 1, 2, 3]
        assert (world.gate.store.size, len(world.gate.waiting)) == (7, 0)
        world.gate.batch = []
        second = await world.gate.take_groups(0, "a batch")
        assert [each.prompt_id for each in second] == [4, 5, 6, 7]
        world.gate.measure(0)
        assert values([world.metrics.drain()], "rollout/producer_wait") == {"": 10.0}

    run_virtual(main())


def test_a_batch_is_ordered_by_prompt_id() -> None:
    async def main() -> None:
        world = bench()
        ids = [world.ledger.issue() for _ in range(4)]
        for prompt_id in reversed(ids):
            world.gate.put(group(prompt_id))
        assert [each.prompt_id for each in await world.gate.take_groups(0, "a batch")] == [0, 1, 2, 3]

    run_virtual(main())


def test_the_trainers_wait_is_measured() -> None:
    async def main() -> None:
        world = bench()
        take = asyncio.ensure_future(world.gate.take_groups(0, "a batch"))
        for _ in range(4):
            await asyncio.sleep(2.5)
            world.put()
        await take
        world.gate.measure(0)
        assert values([world.metrics.drain()], "rollout/trainer_wait") == {"": 10.0}

    run_virtual(main())


def test_a_cancelled_take_loses_nothing() -> None:
    async def main() -> None:
        world = bench()
        for _ in range(3):
            world.put()
        take = asyncio.ensure_future(world.gate.take_groups(0, "a batch"))
        await asyncio.sleep(1.0)
        take.cancel()
        await asyncio.gather(take, return_exceptions=True)
        assert not world.gate.trainer_waiting
        assert world.ledger.count(Place.IN_BATCH) == 3
        world.ledger.check()
        world.put()
        assert [each.prompt_id for each in await world.gate.take_groups(0, "a batch")] == [0, 1, 2, 3]

    run_virtual(main())


def test_groups_of_a_cancelled_take_are_judged_again_for_the_version_of_the_next_one() -> None:
    """Field report 2."""

    async def main() -> None:
        world = bench(("staleness", "max-gap", {"max_staleness": 1}))
        for version in (0, 0, 1):
            world.put(version=version)
        take = asyncio.ensure_future(world.gate.take_groups(1, "a batch"))
        await asyncio.sleep(1.0)
        take.cancel()
        await asyncio.gather(take, return_exceptions=True)
        for _ in range(3):
            world.put(version=2)
        assert [each.prompt_id for each in await world.gate.take_groups(2, "a batch")] == [2, 3, 4, 5]
        assert world.ledger.dropped == {"stale": 2}
        world.ledger.check()

    run_virtual(main())


@pytest.mark.parametrize(("on_unused", "queued"), [("drop", 0), ("retry", 1)])
def test_aborted_groups_never_enter(on_unused: str, queued: int) -> None:
    world = bench(on_unused=on_unused)
    world.put(status=Status.ABORTED)
    assert world.gate.store.size == 0
    assert world.ledger.count(Place.QUEUED) == queued
    assert world.ledger.dropped == ({} if queued else {"aborted": 1})


def test_an_aborted_prompt_is_issued_again_at_most_max_retries_times() -> None:
    world = bench(on_unused="retry", max_retries=2)
    assert [world.put(status=Status.ABORTED) for _ in range(3)] == [0, 0, 0]
    assert world.ledger.dropped == {"aborted": 1}
    assert world.put() == 1


def test_a_group_in_which_nothing_was_generated_never_enters() -> None:
    def nothing(prompt_id: int) -> Group:
        sample = Sample(np.zeros(0, np.int32), np.zeros(0, np.float32), full_mask(0), (), Status.COMPLETED)
        return Group(Prompt(prompt_id, np.zeros(1, np.int32)), (sample, sample))

    world = bench()
    world.put(make=nothing)
    assert world.ledger.dropped == {"empty": 1}


@pytest.mark.parametrize("on_unused", ["drop", "retry"])
def test_groups_that_a_filter_refuses_are_dropped_whatever_on_unused_says(on_unused: str) -> None:
    world = bench(("filters", "reward-variance", {}), on_unused=on_unused)
    world.put(rewards=(1.0, 1.0))
    world.put(rewards=(1.0, 0.0))
    assert world.gate.store.size == 1
    assert world.ledger.dropped == {"no_variance": 1}
    assert world.ledger.count(Place.QUEUED) == 0


class Evicts(Fifo):
    """Makes room by handing back the oldest group."""

    def buffer_put(self, group: Group) -> PutOutcome:
        evicted = [self._groups.popleft()] if len(self._groups) >= self._capacity else []
        self._groups.append(group)
        return accepted(evicted)

    buffer_put = hookimpl(buffer_put)


def test_what_a_buffer_evicts_is_dropped_in_the_books() -> None:
    world = bench(("buffer", Evicts, {"capacity_factor": 1.0}))
    for version in range(6):
        world.put(version=version)
    assert (world.gate.store.size, len(world.gate.waiting)) == (4, 0)
    assert world.ledger.dropped == {"evicted": 2}
    assert world.gate.store.ages(6) == (4, 1 + 2 + 3 + 4, 1, 4)


class Loses(Fifo):
    def buffer_take(self, version: int) -> Taken:
        if len(self._groups) > 4:
            self._groups.popleft()
        return taken(self._groups.popleft()) if self._groups else NOTHING

    buffer_take = hookimpl(buffer_take)


class Doubles(Fifo):
    def buffer_take(self, version: int) -> Taken:
        return taken(self._groups[0]) if self._groups else NOTHING

    buffer_take = hookimpl(buffer_take)


@pytest.mark.parametrize(
    ("kind", "what"),
    [(Loses, "buffer plugin 'Loses'.* holds"), (Doubles, "buffer plugin 'Doubles'.*gave a group that it did not hold: prompt")],
)
def test_a_buffer_that_loses_or_doubles_a_group_fails_the_run(kind: type[Plugin], what: str) -> None:
    run = facts(max_concurrent_samples=32)
    with pytest.raises(PluginFailed, match=what):
        simulate(run, host(run, ("buffer", kind, {})), limit=100.0)


class Answers(Fifo):
    def buffer_put(self, group: Group) -> PutOutcome:
        return True  # type: ignore[return-value]

    buffer_put = hookimpl(buffer_put)


def test_an_answer_of_the_wrong_type_names_the_plugin_and_what_is_right() -> None:
    run = facts()
    with pytest.raises(PluginFailed, match="buffer plugin 'Answers'.*answered buffer_put with True; right are"):
        simulate(run, host(run, ("buffer", Answers, {})), limit=20.0)


class FirstOnly(Plugin):
    """Trains only the first sample of each group."""

    @hookimpl
    def judge_group(self, group: Group) -> object:
        from asyncrl import KEEP

        return KEEP

    @hookimpl
    def mask_batch(self, batch: BatchView) -> Mask:
        return np.array([index == 0 for group in batch.groups for index in range(len(group.samples))])


def test_a_batch_filter_masks_samples_but_cannot_shrink_the_batch() -> None:
    run = facts(steps=2)
    simulated = simulate(run, host(run, ("filters", FirstOnly, {})))
    for batch in simulated.batches:
        assert batch.num_samples == run.batch_size * run.group_size
        assert batch.num_response_tokens == 8 * batch.num_samples
        trained = [bool(batch.loss_mask[start:end].any()) for start, end in zip(batch.starts, batch.starts[1:], strict=False)]
        assert trained == [True, False] * run.batch_size
    books = simulated.service.books()
    assert books["trained"] == 8
    assert books["tokens"]["trained"] == books["tokens"]["dropped"] == 8 * 8


class TooShort(FirstOnly):
    def mask_batch(self, batch: BatchView) -> Mask:
        return np.array([True])

    mask_batch = hookimpl(mask_batch)


def test_a_mask_of_the_wrong_shape_is_refused() -> None:
    run = facts()
    with pytest.raises(PluginFailed, match=r"filters plugin 'TooShort'.*something else than bool\[8\]"):
        simulate(run, host(run, ("filters", TooShort, {})), limit=20.0)


class Tiny(Fifo):
    """Remembers how much it ever held."""

    most = 0

    def buffer_put(self, group: Group) -> PutOutcome:
        outcome = super().buffer_put(group)
        type(self).most = max(self.most, len(self._groups))
        return outcome

    buffer_put = hookimpl(buffer_put)


def test_capacity_is_never_exceeded_and_a_full_buffer_stops_submission() -> None:
    run = facts(steps=5)
    simulated = simulate(run, host(run, ("buffer", Tiny, {"capacity_factor": 1.0})), train_seconds=lambda step: 100.0)
    assert Tiny.most == run.batch_size
    # One batch buffered, and at most what was in flight when the buffer became full, waits beside it.
    assert simulated.service.books()["unfinished"] <= run.batch_size + 2 * run.max_concurrent_samples // run.group_size
    assert len(trained_prompts(simulated)) == 20

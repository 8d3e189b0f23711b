"""A resumed run trains each prompt once: what was buffered is kept, what was in flight is issued again, nothing is skipped."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from asyncrl.errors import BooksError
from asyncrl.rollout.pool import EnginePool
from asyncrl.rollout.service import RolloutService
from asyncrl.simulation.clock import run_virtual
from asyncrl.simulation.engine import ScriptedEngine
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import assert_balanced, facts, host, long_tail


def make(run: Any, seed: int, *plugins: Any) -> RolloutService:
    pool = EnginePool([ScriptedEngine(script=long_tail(seed))], health_interval=0)
    return RolloutService(host(run, *plugins), pool, run)


@settings(max_examples=25, derandomize=True, deadline=None)
@given(seed=st.integers(0, 1000), lives=st.lists(st.integers(1, 4), min_size=2, max_size=4), pause=st.floats(0.0, 20.0))
def test_every_prompt_is_trained_once_over_all_lives_of_a_run(seed: int, lives: list[int], pause: float) -> None:
    """Field reports 20 and 21."""
    run = facts(steps=100, max_concurrent_samples=20)

    async def main() -> None:
        state: dict[str, Any] | None = None
        trained: list[int] = []
        step = 0
        for life, steps in enumerate(lives):
            rollout = make(run, seed + life)
            if state is not None:
                rollout.restore(state)
            await rollout.start()
            for _ in range(steps):
                step += 1
                batch, _ = await rollout.take_batch(0, step)
                rollout.trained(step)
                trained += batch.prompt_ids.tolist()
            await asyncio.sleep(pause)
            state = rollout.state()
            json.dumps(state["ledger"])
            # What comes after the checkpoint is lost with the process.
            await rollout.take_batch(0, step + 1)
            await rollout.stop()
        rollout = make(run, seed)
        rollout.restore(state or {})
        assert rollout.books()["trained"] == len(trained) == len(set(trained))
        await rollout.start()
        untrained = set(range(rollout.books()["issued"])) - set(trained)
        while untrained - set(trained):
            step += 1
            batch, _ = await rollout.take_batch(0, step)
            rollout.trained(step)
            trained += batch.prompt_ids.tolist()
        assert len(trained) == len(set(trained))
        assert rollout.books()["dropped"] == {}
        assert_balanced(rollout.books())
        await rollout.stop()

    run_virtual(main(), limit=100_000.0)


def test_a_batch_that_was_handed_out_and_not_trained_is_issued_again() -> None:
    run = facts(steps=10)

    async def main() -> None:
        first = make(run, 1)
        await first.start()
        batch, _ = await first.take_batch(0, 1)
        state = first.state()
        await first.stop()
        second = make(run, 1, ("scheduler", "lockstep", {}))
        second.restore(state | {"buffer": type(state["buffer"])(()), "waiting": ()})
        await second.start()
        again, _ = await second.take_batch(0, 1)
        assert set(batch.prompt_ids.tolist()) <= set(range(second.books()["issued"]))
        assert again.prompt_ids.tolist() == [0, 1, 2, 3]
        await second.stop()

    run_virtual(main(), limit=1000.0)


def test_groups_that_a_smaller_buffer_leaves_out_are_issued_again() -> None:
    run = facts(steps=10)

    async def main() -> None:
        first = make(run, 1)
        await first.start()
        await asyncio.sleep(100.0)
        state = first.state()
        await first.stop()
        assert len(state["buffer"].groups) == 8
        second = make(run, 1, ("buffer", "fifo", {"capacity_factor": 1.0}))
        second.restore(state)
        assert second._gate.store.size == 4
        second.check()
        await second.start()
        seen: list[int] = []
        for step in range(1, 6):
            batch, _ = await second.take_batch(0, step)
            second.trained(step)
            seen += batch.prompt_ids.tolist()
        assert set(range(8)) <= set(seen) and len(seen) == len(set(seen))
        await second.stop()

    run_virtual(main(), limit=10_000.0)


def test_a_step_is_trained_once() -> None:
    """Field report 21."""
    run = facts()

    async def main() -> None:
        rollout = make(run, 1)
        await rollout.start()
        await rollout.take_batch(0, 1)
        with pytest.raises(BooksError, match="step 2 cannot be trained"):
            rollout.trained(2)
        rollout.trained(1)
        with pytest.raises(BooksError, match="step 1 cannot be trained"):
            rollout.trained(1)
        await rollout.stop()

    run_virtual(main(), limit=100.0)

"""The rollout side lets go when it is stopped, and says what it waits for; whole runs are in simulation/test_field_reports_hangs.py."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from asyncrl import (
    Group,
    Plugin,
    Prompt,
    Sample,
    SampleDone,
    Sampler,
    Verdict,
    drop,
    hookimpl,
    retry,
)
from asyncrl.errors import DeadlineExceeded, PluginFailed, RequestFailed, RunError, Stopped
from asyncrl.rollout.engine import GenerateRequest
from asyncrl.rollout.pool import EnginePool
from asyncrl.rollout.service import RolloutService
from asyncrl.simulation.clock import run_virtual
from asyncrl.simulation.engine import Plan, ScriptedEngine
from simulated import assert_balanced, facts, host, same_length, simulate


def service(run: Any, plugins: Any, **options: Any) -> RolloutService:
    pool = EnginePool([ScriptedEngine(script=same_length)], health_interval=0)
    return RolloutService(plugins, pool, run, **options)


def test_who_asks_a_rollout_side_that_was_stopped_is_told_so() -> None:
    run = facts()

    async def main() -> None:
        rollout = service(run, host(run))
        await rollout.start()
        await asyncio.sleep(100.0)
        await asyncio.wait_for(rollout.stop(), 1.0)
        with pytest.raises(Stopped):
            await rollout.take_batch(0, 1)
        with pytest.raises(Stopped):
            await rollout.pause_submission()

    run_virtual(main(), limit=1000.0)


def test_whoever_asks_after_a_failure_gets_the_same_error() -> None:
    run = facts()

    class Dies(Plugin):
        @hookimpl
        async def produce(self, prompt: Prompt, sampler: Sampler, done: SampleDone) -> Group:
            raise RuntimeError("out of memory")

    async def main() -> None:
        rollout = service(run, host(run, ("producer", Dies, {})))
        await rollout.start()
        errors = []
        for ask in (rollout.take_batch(0, 1), rollout.take_batch(0, 1), rollout.pause_submission()):
            with pytest.raises(PluginFailed, match="out of memory") as caught:
                await ask
            errors.append(caught.value)
        assert errors[0] is errors[1] is errors[2]
        await rollout.stop()

    run_virtual(main(), limit=10.0)


def test_a_slow_judge_is_cancelled_when_the_run_stops() -> None:
    """Field report 18."""
    run = facts()

    async def judge(prompt: Prompt, sample: Sample) -> float:
        await asyncio.sleep(3600.0)
        return 1.0

    async def main() -> None:
        rollout = service(run, host(run, reward=judge))
        await rollout.start()
        await asyncio.sleep(10.0)
        await rollout.stop()
        assert asyncio.get_running_loop().time() == 10.0
        assert_balanced(rollout.books())

    run_virtual(main())


def test_a_judge_that_ignores_its_cancellation_is_named_after_a_deadline() -> None:
    """Field report 18."""
    run = facts()

    async def judge(prompt: Prompt, sample: Sample) -> float:
        for _ in range(10):
            try:
                await asyncio.sleep(3600.0)
            except asyncio.CancelledError:
                continue
        return 1.0

    async def main() -> None:
        rollout = service(run, host(run, reward=judge), stop_timeout=10.0)
        await rollout.start()
        await asyncio.sleep(10.0)
        with pytest.raises(DeadlineExceeded, match=r"did not let go within 10 s.*of prompts 0, 1, 2, 3"):
            await rollout.stop()
        assert asyncio.get_running_loop().time() == 20.0

    run_virtual(main())


def test_a_long_wait_with_work_in_flight_warns_but_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    run = facts(steps=1)
    with caplog.at_level(logging.WARNING, "asyncrl"):
        simulated = simulate(run, host(run), script=lambda request, number: Plan(tokens=100, per_token=1.0))
    assert len(simulated.batches) == 1
    assert caplog.text.count("the trainer has waited") == 3
    assert "more groups are in flight" in caplog.text


class RefusesAll:
    """An engine pool that refuses every request, as a server does a prompt that is too long."""

    engines = ()

    async def generate(self, request: GenerateRequest) -> Any:
        raise RequestFailed("the prompt has 401 tokens, the context is 256")


@pytest.mark.parametrize("on_unused", ["drop", "retry"])
def test_when_every_request_is_refused_the_run_ends_with_the_reason(on_unused: str) -> None:
    async def take() -> None:
        run = facts(batch_size=2)
        rollout = RolloutService(host(run), RefusesAll(), run, on_unused=on_unused)
        await rollout.start()
        try:
            await rollout.take_batch(0, 1)
        finally:
            await rollout.stop()

    with pytest.raises(RunError, match="the last 16 groups all failed, .*401 tokens"):
        run_virtual(take())


@pytest.mark.parametrize("on_stale", ["drop", "retry"])
def test_a_run_whose_groups_all_end_untrained_ends_and_says_why(on_stale: str) -> None:
    """A filter that refuses everything, or a policy that keeps nothing: the engines are busy, and nothing ever comes of it."""

    class RefusesAll(Plugin):
        @hookimpl
        def judge_group(self, group: Group) -> Verdict:
            return drop("never_good")

    class TooOld(Plugin):
        @hookimpl
        def judge_staleness(self, group: Group, version: int) -> Verdict:
            return drop("ancient") if on_stale == "drop" else retry("ancient")

    run = facts(steps=3, max_retries=2)
    for plugin, reason in ((("filters", RefusesAll, {}), "never_good"), (("staleness", TooOld, {}), "ancient")):
        with pytest.raises(RunError, match=rf"the batch of step 1, 4000 groups ended untrained \({reason} 4000\), and 0 of 4"):
            simulate(run, host(run, plugin), limit=1e9)

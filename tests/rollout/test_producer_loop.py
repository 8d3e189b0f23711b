"""When groups are started, and what stops them."""

from __future__ import annotations

import asyncio

import pytest
from asyncrl import LoadView, Plugin, Prompt, SchedulerPlugin, hookimpl
from asyncrl.errors import PluginFailed
from asyncrl.rollout.engine import GenerateRequest
from asyncrl.rollout.pool import EnginePool
from asyncrl.rollout.service import RolloutService
from asyncrl.simulation.clock import run_virtual
from asyncrl.simulation.engine import Plan, ScriptedEngine
from asyncrl.simulation.run import SimulatedRun
from simulated import CountingTask, facts, host, long_tail, simulate, trained_prompts


class Greedy(SchedulerPlugin):
    loads: list[LoadView]

    @hookimpl
    def submission_quota(self, load: LoadView) -> int:
        self.__dict__.setdefault("loads", []).append(load)
        return 10**9


def test_the_cap_holds_whatever_the_scheduler_says() -> None:
    run = facts(max_concurrent_samples=11)
    plugins = host(run, ("scheduler", Greedy, {}))
    simulated = simulate(run, plugins, script=long_tail(1))
    assert simulated.engines[0].most_in_flight <= 11
    loads = plugins.plugin("scheduler").loads
    assert all(load.samples_in_flight <= 11 for load in loads)
    assert all(load.groups_issued >= load.groups_trained + load.groups_buffered + load.groups_in_batch for load in loads)


@pytest.mark.parametrize("answer", [-1, 1.5, None])
def test_a_quota_that_is_no_number_of_groups_names_the_scheduler(answer: object) -> None:
    class Odd(SchedulerPlugin):
        @hookimpl
        def submission_quota(self, load: LoadView) -> int:
            return answer  # type: ignore[return-value]

    run = facts()
    with pytest.raises(PluginFailed, match=f"scheduler plugin 'Odd'.*answered submission_quota with {answer}"):
        simulate(run, host(run, ("scheduler", Odd, {})), limit=20.0)


def test_a_prompt_with_another_id_than_its_position_names_the_task() -> None:
    class Shifted(CountingTask):
        def train_prompt(self, position: int) -> Prompt:
            return super().train_prompt(position + 1)

        train_prompt = hookimpl(train_prompt)

    run = facts()
    with pytest.raises(PluginFailed, match=r"task plugin 'Shifted'.*train_prompt\(0\)"):
        simulate(run, host(run, ("task", Shifted, {})), limit=20.0)


def test_under_sample_a_finished_sample_frees_its_own_slot() -> None:
    run = facts(max_concurrent_samples=4, steps=1)
    starts: dict[int, float] = {}

    def script(request: GenerateRequest, number: int) -> Plan:
        starts.setdefault(request.affinity, asyncio.get_running_loop().time())
        return Plan(tokens=8 if number % 2 == 0 else 64, per_token=0.125)

    simulate(run, host(run, ("scheduler", "sample", {})), script=script)
    assert starts[2] == 1.0  # one sample of each of the first two groups has ended
    starts.clear()
    simulate(run, host(run, ("scheduler", "group", {})), script=script)
    assert starts[2] == 8.0  # a whole group has ended


def test_a_pause_stops_submission_only_and_what_is_in_flight_is_buffered() -> None:
    run = facts(max_concurrent_samples=8, steps=3)
    seen: list[tuple[int, int]] = []

    async def evaluate(simulated: SimulatedRun) -> None:
        await asyncio.sleep(0.5)
        await simulated.service.pause_submission()
        issued = simulated.service.books()["issued"]
        await asyncio.sleep(50.0)
        seen.append((issued, simulated.service.books()["issued"]))
        assert simulated.service._loop.samples_in_flight == 0
        simulated.service.resume_submission()

    simulated = simulate(run, host(run), during=evaluate)
    assert seen == [(4, 4)]
    assert len(simulated.batches) == 3


def test_nothing_is_started_for_a_batch_that_the_run_does_not_need() -> None:
    run = facts(steps=2)
    issued: list[int] = []

    async def look(simulated: SimulatedRun) -> None:
        await asyncio.sleep(35.0)  # the first step ends at 31 s, and the second and last batch is taken then
        issued.append(simulated.service.books()["issued"])
        await asyncio.sleep(20.0)
        issued.append(simulated.service.books()["issued"])

    simulate(run, host(run), during=look, train_seconds=lambda step: 30.0)
    assert issued[0] == issued[1]


class Records(Plugin):
    """Writes down what it is told, and fails at every call."""

    told: list[tuple[str, object]]

    @hookimpl
    def on_group_finished(self, group: object) -> None:
        self.__dict__.setdefault("told", []).append(("finished", group))
        raise RuntimeError("an observer's own trouble")

    @hookimpl
    def on_group_ended(self, prompt_id: int, fate: str, tokens: int) -> None:
        self.__dict__.setdefault("told", []).append((fate, prompt_id))
        raise RuntimeError("an observer's own trouble")


def test_observers_see_each_group_finish_and_end_and_their_failures_cost_nothing() -> None:
    """Field report 38."""
    run = facts()
    plugins = host(run, ("observers", Records, {}))
    simulated = simulate(run, plugins)
    told = plugins.plugin("observers").told
    assert sorted(prompt_id for fate, prompt_id in told if fate == "trained") == sorted(trained_prompts(simulated))
    assert sum(what == "finished" for what, _ in told) >= 24


def paced_service(steps: int = 5) -> tuple[RolloutService, ScriptedEngine]:
    run = facts(steps=steps)
    policy = ("staleness", "max-gap", {"max_staleness": 0, "on_stale": "wait"})
    engine = ScriptedEngine(script=long_tail(1))
    return RolloutService(host(run, ("scheduler", "paced", {}), policy), EnginePool([engine], health_interval=0), run), engine


def test_a_publication_lets_groups_start_before_the_next_batch_is_asked_for() -> None:
    """The trainer may be busy with a checkpoint or an evaluation then."""
    rollout, engine = paced_service()

    async def main() -> None:
        await rollout.start()
        await rollout.take_batch(0, 1)
        rollout.trained(1)
        await asyncio.sleep(100.0)
        assert engine.in_flight == 0
        engine.publish(1)
        rollout.on_published(1)
        await asyncio.sleep(0.01)
        assert engine.in_flight == 8
        await rollout.stop()

    run_virtual(main(), limit=1000.0)


def test_submission_that_is_resumed_starts_groups_by_itself() -> None:
    rollout, engine = paced_service()

    async def main() -> None:
        await rollout.pause_submission()
        await rollout.start()
        await asyncio.sleep(100.0)
        assert engine.in_flight == 0
        rollout.resume_submission()
        await asyncio.sleep(0.01)
        assert engine.in_flight == 8
        await rollout.stop()

    run_virtual(main(), limit=1000.0)

"""A simulated run: exact times, faults of engines, evaluations, and the same again for the same seed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from asyncrl import Plugin, PluginOptions, RunFacts
from asyncrl.errors import OptionError
from asyncrl.host import Active
from asyncrl.simulation.clock import run_virtual
from asyncrl.simulation.engine import ScriptedEngine
from asyncrl.simulation.lengths import ConstantLengths, Lengths, LognormalLengths, RecordedGroup, RecordedLengths
from asyncrl.simulation.run import SimulatedRun
from asyncrl.simulation.script import EngineEvent, LengthScript
from asyncrl.simulation.task import ScriptedTask, simulation_host
from asyncrl.training.batch import flatten
from asyncrl_fifo import Fifo
from asyncrl_lockstep import Lockstep
from asyncrl_none import NoBound
from asyncrl_sample import SampleScheduler
from asyncrl_single_turn import SingleTurn
from simulated import assert_balanced, facts

SECOND = 0.125
"""A token's; eight make a second."""


def actives(run: RunFacts, scheduler: type[Plugin] = SampleScheduler) -> list[Active]:
    plugins: dict[str, Plugin] = {
        "producer": SingleTurn(PluginOptions(), run),
        "scheduler": scheduler(PluginOptions(), run),
        "buffer": Fifo(Fifo.Options(), run),
        "staleness": NoBound(PluginOptions(), run),
    }
    return [Active(slot, slot, "asyncrl", "0", plugin) for slot, plugin in plugins.items()]


def simulate(
    run: RunFacts,
    lengths: Lengths,
    *,
    engines: int = 1,
    slots: int = 8,
    scheduler: type[Plugin] = SampleScheduler,
    recorded: tuple[RecordedGroup, ...] = (),
    request_timeout: float = 600.0,
    **options: Any,
) -> SimulatedRun:
    async def main() -> SimulatedRun:
        script = LengthScript(lengths, per_token=SECOND)
        simulated = SimulatedRun(
            simulation_host(actives(run, scheduler), ScriptedTask(run, recorded=recorded)),
            run,
            [
                ScriptedEngine(f"engine-{index}", slots=slots, script=script, request_timeout=request_timeout)
                for index in range(engines)
            ],
            **options,
        )
        await simulated.run()
        return simulated

    return run_virtual(main(), limit=100_000)


def test_lockstep_takes_generation_and_training_one_after_the_other() -> None:
    run = simulate(facts(steps=5), ConstantLengths(16), scheduler=Lockstep, train_seconds=lambda step: 3.0)
    measured = run.measured(warmup_steps=1)
    assert measured.steps == 5 and measured.step_seconds == (5.0,) * 4
    assert measured.wait_seconds == (2.0,) * 4 and measured.train_seconds == (3.0,) * 4
    assert (measured.limit_generation, measured.limit_training, measured.limit) == (2.0, 3.0, 3.0)
    assert (measured.slots_busy, measured.trainer_busy) == (pytest.approx(0.4), 0.6)
    assert measured.staleness == {0: 16} and measured.token_age_max == 0 and measured.publications == 5
    assert measured.seconds == 25.0 and measured.longest_wait == (2, 2.0)


def test_in_full_overlap_a_step_takes_what_the_slower_side_takes() -> None:
    run = simulate(facts(steps=20), ConstantLengths(16), train_seconds=lambda step: 3.0)
    measured = run.measured(warmup_steps=2)
    assert set(measured.step_seconds) == {3.0} and measured.over_limit == 1.0 and measured.trainer_busy == 1.0
    assert measured.groups["trained"] == 80 and measured.length_issued == measured.length_trained == 16
    assert (measured.length_max, measured.seconds_max) == (16, 2.0)


def test_publications_stop_the_engines_for_their_time() -> None:
    run = simulate(facts(steps=4), ConstantLengths(16), scheduler=Lockstep, train_seconds=lambda step: 1.0, publish_seconds=0.5)
    assert run.measured().step_seconds == (3.5,) * 4


def test_an_evaluation_holds_submission_and_counts_neither_as_step_nor_as_wait() -> None:
    run = simulate(
        facts(steps=5), ConstantLengths(8), train_seconds=lambda step: 1.0, eval_seconds=50.0, eval_interval=2, slots=8
    )
    measured = run.measured()
    assert sum(measured.step_seconds) < 15 and measured.seconds == sum(measured.step_seconds) + 3 * 50.0
    assert run.engines[0].busy_seconds < 15


def test_a_wait_is_named_with_its_step() -> None:
    lengths = RecordedLengths([RecordedGroup((8, 8))] * 8 + [RecordedGroup((800, 8))] + [RecordedGroup((8, 8))] * 100)
    measured = simulate(facts(steps=6), lengths, scheduler=Lockstep).measured()
    assert measured.longest_wait == (3, 100.0)


@pytest.mark.parametrize("faulty", [False, True])
def test_the_same_seed_gives_the_same_run(faulty: bool) -> None:
    def once(seed: int) -> Any:
        run = facts(steps=25, seed=seed)
        faults = [EngineEvent(0, 5.0, "die"), EngineEvent(0, 60.0, "revive"), EngineEvent(1, 20.0, "slow", 3.0)] if faulty else []
        simulated = simulate(run, LognormalLengths(40, seed=seed), engines=3, slots=4, faults=faults)
        return simulated.measured(), [batch.rewards.tolist() for batch in simulated.batches]

    assert once(7) == once(7)
    assert once(7) != once(8)


def test_a_dead_engines_work_is_done_by_the_others_until_it_is_back() -> None:
    """Field report 12."""
    faults = [EngineEvent(0, 10.0, "die"), EngineEvent(0, 40.0, "revive")]
    run = simulate(facts(steps=40, max_concurrent_samples=16), ConstantLengths(16), engines=2, faults=faults)
    measured = run.measured()
    assert measured.groups["trained"] == 160 and not measured.dropped
    assert_balanced(run.service.books())
    assert all(engine.alive for engine in run.engines)
    assert run.engines[0].busy_seconds < measured.seconds - 29


def test_a_hung_engines_requests_end_by_their_deadline() -> None:
    """Field report 11."""
    run = simulate(
        facts(steps=20, max_concurrent_samples=16),
        ConstantLengths(16),
        engines=2,
        request_timeout=30.0,
        faults=[EngineEvent(1, 9.0, "hang")],
    )
    measured = run.measured()
    assert measured.groups["trained"] == 80 and not measured.dropped
    assert not run.engines[1].alive


def test_a_slow_engine_slows_only_what_it_has() -> None:
    slow = simulate(
        facts(steps=20, max_concurrent_samples=16), ConstantLengths(16), engines=2, faults=[EngineEvent(1, 0.0, "slow", 4.0)]
    )
    assert slow.engines[0].requests > 2 * slow.engines[1].requests


def test_a_fault_of_an_engine_that_does_not_exist_is_refused() -> None:
    with pytest.raises(OptionError, match="engine 3, but there are 2"):
        simulate(facts(), ConstantLengths(8), engines=2, faults=[EngineEvent(3, 0.0, "die")])


def test_samples_have_the_rewards_and_lengths_that_were_recorded_for_them() -> None:
    groups = (RecordedGroup((9, 4), rewards=(0.25, 0.5)), RecordedGroup((3, 8), rewards=(1.0, 0.0)))
    run = simulate(facts(steps=3), RecordedLengths(groups), recorded=groups)
    for batch in run.batches:
        lengths = (np.diff(batch.starts) - batch.prompt_lengths).reshape(-1, 2)
        for prompt_id, tokens, rewards in zip(batch.prompt_ids, lengths, batch.rewards.reshape(-1, 2), strict=True):
            assert tuple(tokens) == groups[prompt_id % 2].tokens and tuple(rewards) == groups[prompt_id % 2].rewards


def test_random_rewards_have_their_mean_and_differ_between_prompts() -> None:
    task = ScriptedTask(facts(), reward_mean=0.25)
    rewards = np.array([[task.reward(prompt, index) for index in range(16)] for prompt in range(2000)])
    assert rewards.mean() == pytest.approx(0.25, abs=0.02)
    assert rewards.mean(axis=1).std() > 0.2
    assert not any(ScriptedTask(facts(), reward_mean=0.0).reward(prompt, 0) for prompt in range(100))
    assert all(ScriptedTask(facts(), reward_mean=1.0).reward(prompt, 0) for prompt in range(100))


def test_a_batch_looks_as_if_it_had_been_made_at_once() -> None:
    run = simulate(facts(steps=4), LognormalLengths(40))
    for batch in run.batches:
        params: Any = type("Params", (), {"temperature": 1.0, "max_new_tokens": 64, "top_p": 1.0, "top_k": -1})
        made = flatten(batch.source, version=batch.version, step=batch.step, params=params)  # type: ignore[attr-defined]
        for name, value in vars(made).items():
            np.testing.assert_array_equal(getattr(batch, name), value)


def test_prompts_go_where_the_books_say() -> None:
    run = simulate(facts(steps=50), LognormalLengths(40, clip=4.0), train_seconds=lambda step: 4.0)
    measured = run.measured()
    trained = Counter(int(prompt) for batch in run.batches for prompt in batch.prompt_ids)
    assert set(trained.values()) == {1} and len(trained) == measured.groups["trained"] == 200
    assert measured.groups["issued"] == 200 + measured.groups["unfinished"]
    assert measured.token_age_max == measured.staleness_max
    assert measured.tokens["trained"] == sum(batch.num_response_tokens for batch in run.batches)

"""Field reports 1 to 6: how old is what is trained, as whole runs out of real plugins."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

import numpy as np
import pytest
from asyncrl import (
    FULL,
    KEEP,
    NOTHING,
    Group,
    LoadView,
    Plugin,
    PutOutcome,
    SchedulerPlugin,
    Taken,
    Verdict,
    drop,
    hookimpl,
)
from asyncrl.errors import PluginFailed
from asyncrl.rollout.engine import GenerateRequest
from asyncrl.simulation.engine import Plan
from asyncrl.simulation.script import EngineEvent
from asyncrl_fifo import Fifo
from simulated import (
    facts,
    host,
    long_tail,
    oldest_age,
    trained_prompts,
    values,
)
from watched import WatchedRun, bounded, completed, failed, run_to_its_end


@pytest.mark.parametrize("pause_mode", ["retract", "in_place"])
@pytest.mark.parametrize("scheduler", ["sample", "group"])
def test_01_version_is_taken_at_admission_not_at_the_end(pause_mode: str, scheduler: str) -> None:
    """Every token has the version that was served when it was generated, and so a group is as old as its admission."""
    run = facts(max_concurrent_samples=16, steps=10)
    started: dict[int, float] = {}
    groups: dict[int, Group] = {}

    def script(request: GenerateRequest, number: int) -> Plan:
        started[request.affinity] = asyncio.get_running_loop().time()
        return Plan(tokens=40 if request.affinity % 5 == 4 else 3, per_token=0.13)

    class Watch(Plugin):
        @hookimpl
        def on_group_finished(self, group: Group) -> None:
            groups[group.prompt_id] = group

    plugins = host(run, ("scheduler", scheduler, {}), ("observers", Watch, {}))
    simulated = completed(run_to_its_end(run, plugins, script=script, pause_mode=pause_mode))
    for prompt_id, group in groups.items():
        for sample in group.samples:
            generated = started[prompt_id] + 0.13 * (1 + np.arange(len(sample.token_ids)))
            served = np.searchsorted(simulated.published, generated)
            assert [version for version, count in sample.spans for _ in range(count)] == served.tolist()
    assert max(len(group.samples[0].spans) for group in groups.values()) >= 4
    for batch in simulated.batches:
        for index, prompt_id in enumerate(batch.prompt_ids):
            tokens = np.repeat(batch.groups == index, np.diff(batch.starts)) & batch.loss_mask
            assert batch.versions[tokens].min() == groups[prompt_id].oldest_version


@pytest.mark.parametrize("bound", [0, 1, 2, 3])
@pytest.mark.parametrize(
    ("scheduler", "on_stale"),
    [("sample", "drop"), ("group", "retry"), ("paced", "drop"), ("paced", "wait"), ("lockstep", "drop")],
)
def test_02_bound_holds_for_the_version_that_is_improved(bound: int, scheduler: str, on_stale: str) -> None:
    """However long a batch takes to come together; by the trainer's own version, whatever a batch says it is."""
    run = facts(max_concurrent_samples=24, steps=12)
    plugins = bounded(run, scheduler, bound, on_stale)
    options = {"publish_seconds": 0.25, "eval_interval": 3, "eval_seconds": 2.0}
    simulated = completed(run_to_its_end(run, plugins, script=long_tail(bound), **options))
    ages = [
        improved - int(batch.versions[batch.loss_mask].min())
        for batch, improved in zip(simulated.batches, simulated.improved, strict=True)
    ]
    assert max(ages) == (0 if scheduler == "lockstep" else bound)


class JudgesOnce(Plugin):
    """Keeps a group the first time it is asked and refuses it the second time."""

    @hookimpl
    def judge_staleness(self, group: Group, version: int) -> Verdict:
        counts = self.__dict__.setdefault("asked", Counter())
        counts[group.prompt_id] += 1
        return drop("late") if group.prompt_id < 3 and counts[group.prompt_id] == 2 else KEEP


def test_02_verdict_is_asked_again_when_the_batch_is_complete_and_refused_groups_are_replaced() -> None:
    run = facts(steps=1)
    simulated = completed(run_to_its_end(run, host(run, ("staleness", JudgesOnce, {}))))
    assert not {0, 1, 2} & set(trained_prompts(simulated))
    assert simulated.service.books()["dropped"] == {"late": 3}


@pytest.mark.parametrize("on_stale", ["drop", "retry"])
def test_03_consumed_staleness_counts_only_what_was_trained(on_stale: str) -> None:
    run = facts(max_concurrent_samples=24, steps=12)
    simulated = completed(run_to_its_end(run, bounded(run, "sample", 1, on_stale), script=long_tail(3)))
    deltas = simulated.service.drain_metrics()
    refused = values(deltas, "staleness/max-gap/refused_staleness")[""]
    assert refused[0] > 0 and refused[2] > 1
    count, total, low, high = values(deltas, "rollout/consumed_staleness")[""]
    assert count == run.steps * run.batch_size
    assert 0 <= low <= high <= 1
    assert simulated.service.books()["staleness"] == {"mean": total / count, "max": high}
    measured = simulated.measured()
    assert max(measured.staleness) == measured.token_age_max == high
    assert sum(measured.staleness.values()) == count


@pytest.mark.parametrize("cap", [2, 16])
@pytest.mark.parametrize("on_stale", ["drop", "retry", "wait"])
@pytest.mark.parametrize("scheduler", ["sample", "group", "paced", "lockstep"])
def test_04_bound_of_zero_makes_progress_while_engines_lag(scheduler: str, on_stale: str, cap: int) -> None:
    """Slow publications, one slow engine, and no more slots than for one group."""
    run = facts(max_concurrent_samples=cap)
    plugins = bounded(run, scheduler, 0, on_stale)
    slow = [EngineEvent(1, 0.0, "slow", 5.0)]
    ending = run_to_its_end(run, plugins, script=long_tail(2), engines=2, publish_seconds=5.0, faults=slow, deadline=2_000.0)
    assert oldest_age(completed(ending)) == 0


@pytest.mark.parametrize(("scheduler", "on_stale"), [("lockstep", "drop"), ("paced", "wait")])
def test_04_bound_of_zero_gives_the_batches_of_a_synchronous_run(scheduler: str, on_stale: str) -> None:
    run = facts()
    simulated = completed(run_to_its_end(run, bounded(run, scheduler, 0, on_stale), script=long_tail(1)))
    assert [batch.prompt_ids.tolist() for batch in simulated.batches] == np.arange(24).reshape(6, 4).tolist()
    assert simulated.service.books()["dropped"] == {}


class GrantsNothing(SchedulerPlugin):
    @hookimpl
    def submission_quota(self, load: LoadView) -> int:
        return 0


class GivesNothing(Fifo):
    @hookimpl
    def buffer_take(self, version: int) -> Taken:
        return NOTHING


class AlwaysFull(Fifo):
    @hookimpl
    def buffer_put(self, group: Group) -> PutOutcome:
        return FULL


@pytest.mark.parametrize(
    ("slot", "kind", "what"),
    [
        ("scheduler", GrantsNothing, "'GrantsNothing'.*grants no group with nothing in flight and nothing buffered"),
        ("buffer", GivesNothing, "'GivesNothing'.*gives none of the 8 groups it holds"),
        ("buffer", AlwaysFull, r"'AlwaysFull'.*gives none of the 0 groups it holds \(8 wait to enter\)"),
    ],
)
def test_04_trainer_to_whom_nothing_can_come_is_told_whose_fault_it_is(
    slot: str, kind: type[Plugin], what: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = facts()
    with caplog.at_level(logging.WARNING, "asyncrl"):
        failed(run_to_its_end(run, host(run, (slot, kind, {})), deadline=100.0), PluginFailed, f"batch of step 1.*{what}")
    assert "the trainer has waited 30 s for the batch of step 1: 0 of 4 groups are there" in caplog.text


@pytest.mark.parametrize("publish_interval", [1, 2])
@pytest.mark.parametrize(("scheduler", "on_stale"), [("lockstep", "drop"), ("paced", "wait"), ("sample", "drop")])
def test_05_without_lag_every_token_was_generated_by_the_weights_that_it_improves(
    scheduler: str, on_stale: str, publish_interval: int
) -> None:
    """What the ratio of log-probabilities is then, the trainer's own tests say."""
    run = facts(publish_interval=publish_interval, max_concurrent_samples=16)
    simulated = completed(run_to_its_end(run, bounded(run, scheduler, 0, on_stale), script=long_tail(4), publish_seconds=0.5))
    assert simulated.improved == [step // publish_interval for step in range(run.steps)]
    for batch, improved in zip(simulated.batches, simulated.improved, strict=True):
        assert set(batch.versions[batch.loss_mask].tolist()) == {improved}


def lengths_by_fate(run: Any, scheduler: str, bound: int, on_stale: str) -> tuple[Counter[int], Counter[int], WatchedRun]:
    """Lengths of issued and of trained samples."""
    issued: Counter[int] = Counter()
    tail = long_tail(5)

    def script(request: GenerateRequest, number: int) -> Plan:
        plan = tail(request, number)
        issued[plan.tokens] += 1
        return plan

    simulated = completed(run_to_its_end(run, bounded(run, scheduler, bound, on_stale), script=script))
    trained: Counter[int] = Counter()
    for batch in simulated.batches:
        trained.update((np.diff(batch.starts) - batch.prompt_lengths).tolist())
    return issued, trained, simulated


def mean(lengths: Counter[int]) -> float:
    return sum(length * count for length, count in lengths.items()) / lengths.total()


@pytest.mark.parametrize("bound", [1, 2])
def test_06_paced_drops_nothing_where_dropping_at_the_same_bound_loses_many(bound: int) -> None:
    run = facts(batch_size=8, max_concurrent_samples=16 * (bound + 2), steps=40)
    for scheduler in ("sample", "group"):
        _, _, simulated = lengths_by_fate(run, scheduler, bound, "drop")
        assert oldest_age(simulated) <= bound
        assert simulated.service.books()["dropped"]["stale"] > 0.1 * run.steps * run.batch_size
    _, _, paced = lengths_by_fate(run, "paced", bound, "wait")
    assert oldest_age(paced) == bound
    assert paced.service.books()["dropped"] == {} and paced.service.books()["tokens"]["dropped"] == 0


@pytest.mark.parametrize("bound", [1, 2])
def test_06_trained_lengths_are_those_of_issued_ones(bound: int) -> None:
    run = facts(batch_size=8, max_concurrent_samples=16 * (bound + 2), steps=40)
    issued, trained, _ = lengths_by_fate(run, "sample", bound, "drop")
    assert mean(trained) < 0.95 * mean(issued), "else there would be nothing to cure"
    issued, trained, _ = lengths_by_fate(run, "paced", bound, "wait")
    assert trained == issued


@pytest.mark.parametrize("on_stale", ["retry", "wait"])
def test_06_prompt_that_always_exceeds_the_bound_ends_with_a_reason_after_max_retries_or_is_waited_for(on_stale: str) -> None:
    run = facts(max_concurrent_samples=16, steps=40, max_retries=2)
    asked: Counter[int] = Counter()
    fates: dict[int, str] = {}

    class Watch(Plugin):
        @hookimpl
        def on_group_ended(self, prompt_id: int, fate: str, tokens: int) -> None:
            fates[prompt_id] = fate

    def script(request: GenerateRequest, number: int) -> Plan:
        asked[request.affinity] += 1
        return Plan(tokens=64 if request.affinity == 3 else 4, per_token=0.125)

    scheduler = {"retry": "sample", "wait": "paced"}[on_stale]
    completed(run_to_its_end(run, bounded(run, scheduler, 1, on_stale, ("observers", Watch, {})), script=script))
    if on_stale == "retry":
        assert asked[3] == (1 + run.max_retries) * run.group_size and fates[3] == "stale"
    else:
        assert asked[3] == run.group_size and fates[3] == "trained"

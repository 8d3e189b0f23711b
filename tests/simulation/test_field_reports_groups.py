"""Field reports 7 to 10: nothing is lost, doubled or mangled, as whole runs out of real plugins."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

import numpy as np
import pytest
from asyncrl import (
    KEEP,
    Group,
    LoadView,
    Plugin,
    Prompt,
    PutOutcome,
    Sample,
    SampleDone,
    Sampler,
    SchedulerPlugin,
    Verdict,
    hookimpl,
)
from asyncrl.errors import PluginFailed
from asyncrl.rollout.engine import GenerateRequest
from asyncrl.simulation.engine import Plan
from asyncrl_fifo import Fifo
from simulated import (
    assert_balanced,
    facts,
    first_token_is_odd,
    host,
    long_tail,
    trained_prompts,
    values,
)
from watched import bounded, completed, failed, run_to_its_end


@pytest.mark.parametrize("scheduler", ["sample", "group"])
@pytest.mark.parametrize(
    "buffer", [("fifo", {}), ("priority", {"order": "oldest"}), ("priority", {"order": "freshest"})], ids=str
)
def test_07_groups_beyond_the_batch_are_kept_for_a_later_one(scheduler: str, buffer: Any) -> None:
    run = facts(max_concurrent_samples=64, steps=10)
    plugins = host(run, ("scheduler", scheduler, {}), ("buffer", *buffer))
    simulated = completed(run_to_its_end(run, plugins, script=long_tail(6)))
    books = simulated.service.books()
    assert books["dropped"] == {} and books["tokens"]["dropped"] == 0
    assert books["issued"] == books["trained"] + books["unfinished"] > books["trained"]


@pytest.mark.parametrize("cause", ["stale", "abort", "error"])
def test_08_prompt_that_is_issued_again_is_byte_equal_to_what_the_task_issued(cause: str) -> None:
    """For engines and for rewards; and no sample holds what an earlier try had generated."""
    run = facts(max_concurrent_samples=16, max_retries=1, steps=12)
    seen: dict[int, set[bytes]] = {}
    issued_again: list[int] = []
    lengths: set[int] = set()

    def script(request: GenerateRequest, number: int) -> Plan:
        seen.setdefault(request.affinity, set()).add(request.token_ids.tobytes())
        long = number % 7 == 0
        fault: Any = cause if cause != "stale" and request.affinity % 5 == 0 and number < 90 else ""
        return Plan(tokens=40 if long else 4, per_token=0.125, fault=fault, fault_after=3)

    async def reward(prompt: Prompt, sample: Sample) -> float:
        seen[prompt.prompt_id].add(prompt.token_ids.tobytes())
        lengths.add(len(sample.token_ids))
        return 1.0

    class Watch(Plugin):
        @hookimpl
        def on_group_finished(self, group: Group) -> None:
            issued_again.append(group.prompt_id)

    plugins = bounded(run, "sample", 0 if cause == "stale" else 9, "retry", ("observers", Watch, {}), reward=reward)
    simulated = completed(run_to_its_end(run, plugins, script=script, max_attempts=1, on_unused="retry"))
    again = values(simulated.service.drain_metrics(), "rollout/issued_again")
    assert set(again) == {{"stale": "stale", "abort": "aborted", "error": "request_failed"}[cause]}
    for prompt_id, tokens in seen.items():
        assert tokens == {np.array([int(digit) for digit in str(prompt_id)], np.int32).tobytes()}
    assert lengths == {4, 40}


@pytest.mark.parametrize("fault", ["abort", "error"])
def test_09_one_failed_sample_alone_is_generated_again(fault: Any) -> None:
    run = facts(batch_size=1, group_size=8, max_concurrent_samples=8, steps=1)
    asked: Counter[int] = Counter()

    def script(request: GenerateRequest, number: int) -> Plan:
        asked[request.affinity] += 1
        return Plan(tokens=8, fault=fault if number == 3 else "", fault_after=4)

    simulated = completed(run_to_its_end(run, host(run), script=script, max_attempts=1))
    assert asked[0] == 9
    assert trained_prompts(simulated) == [0]
    reason = {"abort": "aborted", "error": "request_failed"}[fault]
    assert values(simulated.service.drain_metrics(), "rollout/sample_retries") == {reason: 1}


def test_09_sample_that_fails_for_good_is_tried_max_retries_times_and_its_group_dropped() -> None:
    run = facts(batch_size=1, group_size=4, max_concurrent_samples=4, steps=1, max_retries=2)
    asked: Counter[int] = Counter()

    def script(request: GenerateRequest, number: int) -> Plan:
        asked[request.affinity] += 1
        cursed = request.affinity == 0 and number not in (0, 1, 2)
        return Plan(tokens=8, fault="abort" if cursed else "", fault_after=4)

    simulated = completed(run_to_its_end(run, host(run), script=script))
    assert asked[0] == 4 + run.max_retries
    books = simulated.service.books()
    assert books["dropped"] == {"aborted": 1}
    assert books["tokens"]["dropped"] == 3 * 8 + 3 * 4
    assert trained_prompts(simulated) == [1]


def test_10_transient_engine_errors_are_retried_and_cost_nothing() -> None:
    run = facts(max_concurrent_samples=16)

    def script(request: GenerateRequest, number: int) -> Plan:
        return Plan(tokens=8, fault="error" if number % 5 == 0 else "", fault_after=2)

    simulated = completed(run_to_its_end(run, host(run), script=script, engines=2))
    assert simulated.service.books()["dropped"] == {}
    assert values(simulated.service.drain_metrics(), "rollout/sample_failures") == {}


def test_10_exception_in_a_reward_marks_the_sample_failed_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    run = facts(max_concurrent_samples=16, max_retries=1)
    finished: list[Group] = []

    class Watch(Plugin):
        @hookimpl
        def on_group_finished(self, group: Group) -> None:
            finished.append(group)

    async def reward(prompt: Prompt, sample: Sample) -> float:
        if prompt.prompt_id % 5 == 0:
            raise ZeroDivisionError("no such luck")
        return await first_token_is_odd(prompt, sample)

    with caplog.at_level(logging.WARNING, "asyncrl"):
        simulated = completed(run_to_its_end(run, host(run, ("observers", Watch, {}), reward=reward)))
    assert simulated.service.books()["dropped"].keys() == {"reward_error"}
    assert not any(prompt_id % 5 == 0 for prompt_id in trained_prompts(simulated))
    fallen = next(group for group in finished if group.prompt_id == 0)
    assert {sample.reason for sample in fallen.samples} == {"reward_error: ZeroDivisionError: no such luck"}
    failures = values(simulated.service.drain_metrics(), "rollout/sample_failures")
    assert failures["reward_error"] >= 2 * run.group_size
    assert caplog.text.count("ZeroDivisionError: no such luck") == 1
    assert "Traceback" in caplog.text


class BuggyProducer(Plugin):
    @hookimpl
    async def produce(self, prompt: Prompt, sampler: Sampler, done: SampleDone) -> Group:
        await asyncio.sleep(1.0)
        raise KeyError("a bug of the producer")


class BuggyScheduler(SchedulerPlugin):
    @hookimpl
    def submission_quota(self, load: LoadView) -> int:
        raise KeyError("a bug of the scheduler")


class BuggyFilter(Plugin):
    @hookimpl
    def judge_group(self, group: Group) -> Verdict:
        raise KeyError("a bug of the filter")


class BuggyStaleness(Plugin):
    @hookimpl
    def judge_staleness(self, group: Group, version: int) -> Verdict:
        raise KeyError("a bug of the policy")


class BuggyBuffer(Fifo):
    @hookimpl
    def buffer_put(self, group: Group) -> PutOutcome:
        raise KeyError("a bug of the buffer")


@pytest.mark.parametrize(
    ("slot", "kind", "what"),
    [
        ("producer", BuggyProducer, "a bug of the producer"),
        ("scheduler", BuggyScheduler, "a bug of the scheduler"),
        ("filters", BuggyFilter, "a bug of the filter"),
        ("staleness", BuggyStaleness, "a bug of the policy"),
        ("buffer", BuggyBuffer, "a bug of the buffer"),
    ],
)
def test_10_plugins_own_bug_ends_the_run_promptly_with_the_original_traceback(slot: str, kind: type[Plugin], what: str) -> None:
    run = facts()
    ending = run_to_its_end(run, host(run, (slot, kind, {})), deadline=20.0)
    failed(ending, PluginFailed, f"{slot} plugin '{kind.__name__}'.*{what}")
    assert isinstance(ending.error, PluginFailed) and isinstance(ending.error.__cause__, KeyError)
    assert f'raise KeyError("{what}")' in ending.error.detail


def test_10_backlog_is_not_trained_after_the_producer_has_failed() -> None:
    run = facts(max_concurrent_samples=16, steps=10)

    class FailsLater(Plugin):
        @hookimpl
        def judge_group(self, group: Group) -> Verdict:
            if group.prompt_id == 11:
                raise KeyError("late bug")
            return KEEP

    ending = run_to_its_end(run, host(run, ("filters", FailsLater, {})), train_seconds=lambda step: 50.0)
    failed(ending, PluginFailed, "late bug")
    assert len(ending.run.batches) == 1
    assert ending.run.service._gate.store.size >= run.batch_size
    assert_balanced(ending.run.service.books())

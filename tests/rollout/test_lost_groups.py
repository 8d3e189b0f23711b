"""Nothing is lost, doubled or mangled: groups beyond a batch, re-issued prompts, single failed samples, failing rewards."""

from __future__ import annotations

import asyncio
import logging

import pytest
from asyncrl import KEEP, Group, LoadView, Plugin, Prompt, Sample, SampleDone, Sampler, SchedulerPlugin, Verdict, hookimpl
from asyncrl.errors import PluginFailed
from asyncrl.rollout.engine import GenerateRequest
from asyncrl.simulation.engine import Plan
from asyncrl.simulation.run import SimulatedRun
from simulated import assert_balanced, facts, first_token_is_odd, host, long_tail, simulate, trained_prompts, values


def test_groups_beyond_the_batch_are_kept_for_the_next_one() -> None:
    """Field report 7."""
    run = facts(max_concurrent_samples=64, steps=10)
    simulated = simulate(run, host(run), script=long_tail(6))
    books = simulated.service.books()
    assert books["dropped"] == {}
    assert_balanced(books)
    trained = trained_prompts(simulated)
    assert len(trained) == len(set(trained)) == run.steps * run.batch_size


def test_a_retried_prompt_is_byte_equal_to_what_the_task_issued() -> None:
    """Field report 8."""
    run = facts(max_concurrent_samples=16, max_retries=3, max_new_tokens=64)
    seen: dict[int, set[bytes]] = {}
    times: dict[int, int] = {}

    def script(request: GenerateRequest, number: int) -> Plan:
        seen.setdefault(request.affinity, set()).add(request.token_ids.tobytes())
        times[request.affinity] = times.get(request.affinity, 0) + 1
        return Plan(tokens=40 if number % 7 == 0 else 4, per_token=0.125)

    plugins = host(run, ("staleness", "max-gap", {"max_staleness": 0, "on_stale": "retry"}))
    simulate(run, plugins, script=script)
    assert max(times.values()) > run.group_size
    for prompt_id, tokens in seen.items():
        assert tokens == {bytes(b"".join(int(digit).to_bytes(4, "little") for digit in str(prompt_id)))}


@pytest.mark.parametrize("fault", ["abort", "error"])
def test_one_failed_sample_alone_is_generated_again(fault: str) -> None:
    """Field report 9."""
    run = facts(batch_size=1, group_size=8, max_concurrent_samples=8, steps=1)
    asked: list[int] = []

    def script(request: GenerateRequest, number: int) -> Plan:
        asked.append(request.affinity)
        return Plan(tokens=8, fault=fault if number == 3 else "", fault_after=4)  # type: ignore[arg-type]

    simulated = simulate(run, host(run), script=script, max_attempts=1)
    assert asked.count(0) == 9
    assert trained_prompts(simulated) == [0]
    deltas = simulated.service.drain_metrics()
    reason = {"abort": "aborted", "error": "request_failed"}[fault]
    assert values(deltas, "rollout/sample_retries") == {reason: 1}
    assert_balanced(simulated.service.books())


def test_a_sample_that_fails_for_good_is_tried_max_retries_times_and_its_group_dropped() -> None:
    """Field report 9."""
    run = facts(batch_size=1, group_size=4, max_concurrent_samples=4, steps=1, max_retries=2)
    asked: list[int] = []

    def script(request: GenerateRequest, number: int) -> Plan:
        asked.append(request.affinity)
        cursed = request.affinity == 0 and number not in (0, 1, 2)
        return Plan(tokens=8, fault="abort" if cursed else "", fault_after=4)

    simulated = simulate(run, host(run), script=script)
    assert asked.count(0) == 4 + run.max_retries
    books = simulated.service.books()
    assert books["dropped"] == {"aborted": 1}
    assert books["tokens"]["dropped"] == 3 * 8 + 3 * 4
    assert trained_prompts(simulated) == [1]


@pytest.mark.parametrize(("on_unused", "tries", "fate"), [("drop", 1, {"aborted": 1}), ("retry", 3, {"aborted": 1})])
def test_an_aborted_group_is_dropped_or_issued_again_as_on_unused_says(on_unused: str, tries: int, fate: dict[str, int]) -> None:
    run = facts(batch_size=1, group_size=2, max_concurrent_samples=2, steps=9, max_retries=2)
    asked: list[int] = []

    def script(request: GenerateRequest, number: int) -> Plan:
        asked.append(request.affinity)
        return Plan(tokens=8, fault="abort" if request.affinity == 0 else "", fault_after=4)

    simulated = simulate(run, host(run), script=script, on_unused=on_unused)
    assert asked.count(0) == tries * run.group_size * (1 + run.max_retries)
    assert simulated.service.books()["dropped"] == fate
    assert trained_prompts(simulated) == list(range(1, 10))


def test_transient_engine_errors_are_retried_and_cost_nothing() -> None:
    """Field report 10."""
    run = facts(max_concurrent_samples=16)

    def script(request: GenerateRequest, number: int) -> Plan:
        return Plan(tokens=8, fault="error" if number % 5 == 0 else "", fault_after=2)

    simulated = simulate(run, host(run), script=script, engines=2)
    assert simulated.service.books()["dropped"] == {}
    assert len(simulated.batches) == run.steps
    assert values(simulated.service.drain_metrics(), "rollout/sample_failures") == {}


def test_an_exception_in_a_reward_marks_the_sample_failed_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    """Field report 10."""
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

    plugins = host(run, ("observers", Watch, {}), reward=reward)
    with caplog.at_level(logging.WARNING, "asyncrl"):
        simulated = simulate(run, plugins)
    books = simulated.service.books()
    assert len(simulated.batches) == run.steps
    assert books["dropped"].keys() == {"reward_error"}
    assert not any(prompt_id % 5 == 0 for prompt_id in trained_prompts(simulated))
    failed = next(group for group in finished if group.prompt_id == 0)
    assert {sample.reason for sample in failed.samples} == {"reward_error: ZeroDivisionError: no such luck"}
    failures = values(simulated.service.drain_metrics(), "rollout/sample_failures")
    assert failures["reward_error"] >= 2 * run.group_size
    assert caplog.text.count("ZeroDivisionError: no such luck") == 1
    assert "Traceback" in caplog.text


def test_a_reward_that_is_no_number_is_a_failed_sample() -> None:
    run = facts(max_concurrent_samples=16, max_retries=0)

    async def reward(prompt: Prompt, sample: Sample) -> float:
        return float("nan") if prompt.prompt_id == 0 else 1.0

    simulated = simulate(run, host(run, reward=reward))
    assert simulated.service.books()["dropped"] == {"reward_error": 1}


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


@pytest.mark.parametrize(
    ("slot", "kind", "what"),
    [
        ("producer", BuggyProducer, "a bug of the producer"),
        ("scheduler", BuggyScheduler, "a bug of the scheduler"),
        ("filters", BuggyFilter, "a bug of the filter"),
        ("staleness", BuggyStaleness, "a bug of the policy"),
    ],
)
def test_a_plugins_own_bug_ends_the_run_promptly_with_the_original_traceback(slot: str, kind: type[Plugin], what: str) -> None:
    """Field report 10."""
    run = facts()
    with pytest.raises(PluginFailed, match=f"{slot} plugin '{kind.__name__}'.*{what}") as caught:
        simulate(run, host(run, (slot, kind, {})), limit=20.0)
    assert isinstance(caught.value.__cause__, KeyError)
    assert f'raise KeyError("{what}")' in caught.value.detail


def test_a_backlog_is_not_trained_after_the_producer_has_failed() -> None:
    """Field report 10."""
    run = facts(max_concurrent_samples=16, steps=10)

    class FailsLater(Plugin):
        @hookimpl
        def judge_group(self, group: Group) -> Verdict:
            if group.prompt_id == 11:
                raise KeyError("late bug")
            return KEEP

    kept: list[SimulatedRun] = []

    async def keep(simulated: SimulatedRun) -> None:
        kept.append(simulated)

    with pytest.raises(PluginFailed, match="late bug"):
        simulate(run, host(run, ("filters", FailsLater, {})), during=keep, train_seconds=lambda step: 50.0)
    [simulated] = kept
    assert len(simulated.batches) == 1
    assert simulated.service._gate.store.size >= run.batch_size
    assert_balanced(simulated.service.books())

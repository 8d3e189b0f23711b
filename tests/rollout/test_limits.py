"""Memory of the buffer in bytes, and samples that grow beyond the token limit."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import numpy as np
import pytest
from asyncrl import Group, Plugin, Prompt, SampleDone, Sampler, hookimpl
from asyncrl.errors import OptionError
from asyncrl.options import resolve
from asyncrl.rollout.engine import GenerateRequest
from asyncrl.samples import Sample, Status, cut_spans, full_mask, merge_spans
from asyncrl.simulation.engine import Plan
from asyncrl.simulation.run import SimulatedRun
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import assert_balanced, facts, host, long_tail, simulate, trained_prompts, values

# The buffer ----------------------------------------------------------------------------------------------------------------


@settings(max_examples=40, derandomize=True, deadline=None)
@given(
    seed=st.integers(0, 1000),
    limit=st.sampled_from([1, 300, 900, 2_500, 100_000]),
    buffer=st.sampled_from(["fifo", "priority"]),
    scheduler=st.sampled_from(["sample", "group", "paced"]),
    train_seconds=st.sampled_from([0.5, 20.0]),
)
def test_the_buffer_never_holds_more_bytes_than_it_may_and_the_run_goes_on(
    seed: int, limit: int, buffer: str, scheduler: str, train_seconds: float
) -> None:
    """Only a group that is larger than the limit itself stands above it, alone."""
    run = facts(buffer_bytes=limit, group_size=2, batch_size=4)
    plugins = host(
        run,
        ("buffer", buffer, {"capacity_factor": 2.0}),
        ("scheduler", scheduler, {}),
        ("staleness", "max-gap", {"max_staleness": 3}),
    )
    simulated = SimulatedRunWithLook(plugins, run)
    ended = simulate(run, plugins, script=long_tail(seed), train_seconds=lambda step: train_seconds, during=simulated.look)
    assert_balanced(ended.service.books())
    assert len(trained_prompts(ended)) == run.steps * run.batch_size
    assert simulated.looked
    store = ended.service._gate.store
    assert store.bytes == sum(group.num_bytes for group in store.state().groups)


class SimulatedRunWithLook:
    """Looks at the buffer each time a group was put into it or taken out."""

    def __init__(self, plugins: Any, run: Any) -> None:
        self.looked = 0
        self._limit = run.buffer_bytes

    async def look(self, simulated: SimulatedRun) -> None:
        store = simulated.service._gate.store
        count = store._count

        def counted(group: Group, change: int) -> None:
            count(group, change)
            self.looked += 1
            assert store.bytes <= self._limit or store.size == 1

        store._count = counted  # type: ignore[method-assign]


def test_the_gauge_says_what_the_buffer_holds() -> None:
    run = facts()
    seen: list[tuple[dict[str, Any], int]] = []

    async def look(simulated: SimulatedRun) -> None:
        await asyncio.sleep(8.0)
        seen.append((values(simulated.service.drain_metrics(), "rollout/buffer_bytes"), simulated.service._gate.store.bytes))

    simulate(run, host(run), train_seconds=lambda step: 10.0, during=look)
    assert seen == [({"": seen[0][1]}, seen[0][1])]
    assert seen[0][1] > 0


@pytest.mark.parametrize(("text", "size"), [("2GiB", 2 * 2**30), ("1.5MB", 1_500_000), ("4096", 4096), ("0", 0)])
def test_memory_is_written_with_its_unit(text: str, size: int) -> None:
    assert resolve(None, ["--buffer-bytes", text]).core.buffer_bytes == size


@pytest.mark.parametrize("text", ["-1", "many", "2 apples"])
def test_memory_in_no_known_unit_is_refused_with_the_flag(text: str) -> None:
    with pytest.raises(OptionError, match="--buffer-bytes"):
        resolve(None, [f"--buffer-bytes={text}"])


# Tokens --------------------------------------------------------------------------------------------------------------------

SPANS = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9)), max_size=8).map(merge_spans)


@given(spans=SPANS, length=st.integers(0, 90), trained=st.randoms(use_true_random=False))
def test_a_cut_sample_is_the_beginning_of_the_whole_one(spans: tuple[tuple[int, int], ...], length: int, trained: Any) -> None:
    versions = [version for version, count in spans for _ in range(count)]
    mask = np.array([trained.random() < 0.5 for _ in versions], np.bool_)
    tokens = np.arange(len(versions), dtype=np.int32)
    whole = Sample(tokens, tokens.astype(np.float32), mask, spans, Status.COMPLETED, 1.0)
    cut = whole.cut(length)
    assert [version for version, count in cut.spans for _ in range(count)] == versions[:length]
    assert cut.spans == merge_spans(cut_spans(spans, length))
    assert cut.token_ids.tolist() == tokens[:length].tolist()
    assert cut.logprobs.tolist() == tokens[:length].tolist()
    assert cut.loss_mask.tolist() == mask[:length].tolist()
    assert cut.status is (Status.TRUNCATED if len(versions) > length else Status.COMPLETED)
    assert cut is whole or cut.token_ids.base is None, "what was cut off is not kept in memory"


class ThreeTurns(Plugin):
    """Producer: three completions of a sample, one after the other; whether the sampler scores them is up to the test."""

    scores = True

    @hookimpl
    async def produce(self, prompt: Prompt, sampler: Sampler, done: SampleDone) -> Group:
        async def one(prompt: Prompt) -> Sample:
            answers = [await sampler.generate(prompt, prompt.token_ids) for _ in range(3)]
            tokens = np.concatenate([answer.token_ids for answer in answers])
            logprobs = np.concatenate([answer.logprobs for answer in answers])
            spans = merge_spans(span for answer in answers for span in answer.spans)
            sample = Sample(tokens, logprobs, full_mask(len(tokens)), spans, Status.COMPLETED)
            return await sampler.score(prompt, sample) if self.scores else sample

        return await sampler.group(prompt, one, done)


class ScoresItself(ThreeTurns):
    scores = False


def eight_tokens(request: GenerateRequest, number: int) -> Plan:
    return Plan(tokens=8, per_token=0.125)


@pytest.mark.parametrize("producer", [ThreeTurns, ScoresItself])
def test_a_sample_beyond_the_limit_is_cut_before_it_is_scored_and_counted(
    producer: type[Plugin], caplog: pytest.LogCaptureFixture
) -> None:
    scored: list[int] = []

    async def reward(prompt: Prompt, sample: Sample) -> float:
        scored.append(len(sample.token_ids))
        return 0.0

    run = facts(max_new_tokens=8, max_sample_tokens=20)
    with caplog.at_level(logging.WARNING, "asyncrl"):
        ended = simulate(run, host(run, ("producer", producer, {}), reward=reward), script=eight_tokens)
    lengths = {int(length) for batch in ended.batches for length in np.diff(batch.starts) - batch.prompt_lengths}
    assert lengths == {20}
    assert set(scored) <= {20}
    books = ended.service.books()
    assert_balanced(books)
    trained = run.steps * run.batch_size * run.group_size
    assert books["tokens"]["trained"] == trained * 20
    assert caplog.text.count("more than max_sample_tokens (20)") == 1
    assert f"producer plugin '{producer.__name__}'" in caplog.text


def test_what_is_cut_off_is_in_the_books() -> None:
    run = facts(max_new_tokens=8, steps=1, max_concurrent_samples=8)
    ended = simulate(run, host(run, ("producer", ThreeTurns, {})), script=eight_tokens)
    deltas = ended.service.drain_metrics()
    cut = values(deltas, "rollout/samples_cut")[""]
    assert cut >= 8
    assert values(deltas, "rollout/tokens")["over_limit"] == cut * 16
    ended.service.check()


def test_a_limit_below_the_length_of_a_completion_is_refused() -> None:
    with pytest.raises(OptionError, match="max_sample_tokens = 5 cuts what max_new_tokens = 8"):
        resolve(None, ["--max-new-tokens", "8", "--max-sample-tokens", "5"])

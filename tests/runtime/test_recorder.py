"""What the rollout actor records of finished groups, and how it reaches `trace.jsonl`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from asyncrl import Group, Prompt, RunFacts, Sample, Score, Status, full_mask
from asyncrl.host import Host
from asyncrl.rollout.group_sampler import GroupSampler
from asyncrl.rollout.metrics import RolloutMetrics
from asyncrl.rollout.pool import EnginePool
from asyncrl.runtime.directory import RunDirectory
from asyncrl.runtime.recorder import Recorder
from asyncrl.samples import SamplingParams
from asyncrl.simulation.clock import run_virtual
from asyncrl.simulation.trace import read_trace

FACTS = RunFacts(batch_size=4, group_size=2, max_concurrent_samples=8, steps=6)


async def unscored(prompt: Prompt, sample: Sample) -> Score:
    return Score(0.0)


def sample(tokens: int, status: Status = Status.COMPLETED) -> Sample:
    spans = ((0, tokens),) if tokens else ()
    return Sample(
        np.zeros(tokens, np.int32), np.zeros(tokens, np.float32), full_mask(tokens), spans, status, float(tokens % 2), "aborted"
    )


async def produced(prompt_id: int, *samples: tuple[float, Sample]) -> Group:
    """Return a group whose samples end after the given seconds."""
    sampler = GroupSampler(
        EnginePool([], health_interval=0),
        unscored,
        group_size=len(samples),
        params=SamplingParams(8),
        max_retries=0,
        metrics=RolloutMetrics("rollout"),
    )
    plans = iter(samples)

    async def one(prompt: Prompt) -> Sample:
        seconds, sample = next(plans)
        await asyncio.sleep(seconds)
        return sample

    return await sampler.group(Prompt(prompt_id, np.zeros(1, np.int32)), one, lambda sample: None)


def recorded(recorder: Recorder, groups: Sequence[Group]) -> None:
    host = recorder.observing(Host([]))
    for group in groups:
        host.observe("on_group_finished", group=group)


def test_a_group_is_recorded_by_lengths_slot_seconds_and_rewards() -> None:
    recorder = Recorder(FACTS, limit=10)

    async def main() -> None:
        recorded(recorder, [await produced(17, (3.0, sample(3)), (1.0, sample(2)), (0.5, sample(0, Status.ABORTED)))])

    run_virtual(main())
    assert recorder.take() == [(17, (3, 2, 0), (3.0, 1.0, 0.5), (1.0, 0.0, 0.0))]
    assert recorder.take() == []


def test_the_pauses_of_publications_are_no_time_of_the_samples() -> None:
    """They are booked as the publications', so that a simulation that publishes does not count them twice."""
    recorder = Recorder(FACTS, limit=10)

    async def publish(at: float) -> None:
        await asyncio.sleep(at)
        with recorder.pause():
            await asyncio.sleep(1.0)

    async def main() -> None:
        publications = [asyncio.ensure_future(publish(at)) for at in (1.0, 3.0, 9.0)]
        await asyncio.sleep(1.5)
        group = produced(0, (6.0, sample(1)), (2.0, sample(1)), (0.25, sample(1)))
        recorded(recorder, [await group])
        await asyncio.gather(*publications)
        recorded(recorder, [await produced(1, (1.0, sample(1)))])

    run_virtual(main())
    assert [seconds for _, _, seconds, _ in recorder.take()] == [(4.5, 1.0, 0.0), (1.0,)]
    assert recorder.paused_seconds == 3.0


def test_recording_stops_at_its_limit_and_may_be_off() -> None:
    recorder = Recorder(FACTS, limit=2)
    group = Group(Prompt(5, np.zeros(1, np.int32)), (sample(1),))
    recorded(recorder, [group] * 3)
    assert recorder.take() == [(5, (1,), (), (1.0,))] * 2
    assert not Recorder(FACTS, limit=0).observing(Host([])).has("on_group_finished")


def test_a_written_trace_is_read_again(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path, "one")
    directory.create("")
    directory.add_trace([(1, (3, 4), (0.5, 0.25), (0.0, 1.0))])
    directory.add_trace([(0, (5,), (), (0.5,))])
    lines = [json.loads(line) for line in (directory.path / "trace.jsonl").read_text().splitlines()]
    assert lines == [
        {"prompt_id": 1, "tokens": [3, 4], "seconds": [0.5, 0.25], "rewards": [0.0, 1.0]},
        {"prompt_id": 0, "tokens": [5], "rewards": [0.5]},
    ]
    first, second = read_trace(directory.path / "trace.jsonl").groups
    assert (first.tokens, first.seconds, first.rewards) == ((5,), (), (0.5,))
    assert (second.tokens, second.seconds, second.rewards) == ((3, 4), (0.5, 0.25), (0.0, 1.0))


def test_a_full_disk_is_an_error_that_the_reporter_can_take(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path, "one")
    directory.create("")
    (directory.path / "trace.jsonl").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        directory.add_trace([(0, (5,), (), (0.5,))])

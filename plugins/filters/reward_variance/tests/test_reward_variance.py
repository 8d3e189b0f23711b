"""`reward-variance` drops groups that carry no gradient."""

from __future__ import annotations

import numpy as np
import pytest
from asyncrl import KEEP, Group, OptionError, Prompt, RunFacts, Sample, Status, drop, full_mask
from asyncrl.samples import Spans
from asyncrl_reward_variance import RewardVariance


def group(*samples: Sample) -> Group:
    return Group(Prompt(0, np.zeros(1, np.int32)), samples)


def sample(spans: Spans = ((0, 2),), reward: float = 0.0) -> Sample:
    count = sum(tokens for _, tokens in spans)
    return Sample(np.zeros(count, np.int32), np.zeros(count, np.float32), full_mask(count), spans, Status.COMPLETED, reward)


def judge(*rewards: float, min_spread: float = 0.0) -> object:
    run = RunFacts(batch_size=1, group_size=len(rewards), max_concurrent_samples=8, steps=1)
    options = RewardVariance.Options(min_spread=min_spread)
    return RewardVariance(options, run).judge_group(group(*(sample(reward=reward) for reward in rewards)))


@pytest.mark.parametrize("rewards", [(0.0, 0.0, 0.0), (1.0, 1.0), (0.5,)])
def test_rewards_that_are_all_alike_are_dropped(rewards: tuple[float, ...]) -> None:
    assert judge(*rewards) == drop("no_variance")


def test_rewards_that_differ_are_kept() -> None:
    assert judge(0.0, 0.0, 1.0) is KEEP


def test_the_spread_that_is_asked_for_must_be_exceeded() -> None:
    assert judge(0.0, 0.25, min_spread=0.25) == drop("no_variance")
    assert judge(0.0, 0.5, min_spread=0.25) is KEEP


def test_groups_of_one_sample_are_refused_before_the_run_starts() -> None:
    run = RunFacts(batch_size=1, group_size=1, max_concurrent_samples=8, steps=1)
    with pytest.raises(OptionError, match="group_size = 1"):
        RewardVariance(RewardVariance.Options(), run).check_run(run)

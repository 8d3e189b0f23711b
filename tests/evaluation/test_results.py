"""What the samples of a set come to."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from math import isclose

import numpy as np
import pytest
from asyncrl.evaluation.results import mean_pass_at, pass_at, powers_of_two, summarise
from asyncrl.samples import Group, Prompt, Sample, Status, full_mask
from hypothesis import given
from hypothesis import strategies as st

COUNTS = st.integers(1, 10).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n)))


def sample(reward: float, status: Status = Status.COMPLETED, version: int = 3) -> Sample:
    return Sample(np.array([5, 6], np.int32), np.zeros(2, np.float32), full_mask(2), ((version, 2),), status, reward)


def group(prompt_id: int, *samples: Sample) -> Group:
    return Group(Prompt(prompt_id, np.array([1], np.int32)), samples)


@given(COUNTS)
def test_pass_at_k_is_the_fraction_of_all_choices_of_k_samples_with_one_that_passed(counts: tuple[int, int, int]) -> None:
    n, c, k = counts
    choices = list(combinations([True] * c + [False] * (n - c), k))
    assert pass_at(k, samples=n, passed=c) == sum(map(any, choices)) / len(choices)


@given(st.integers(1, 4000).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_a_probability_that_agrees_with_the_product_of_the_paper(counts: tuple[int, int, int]) -> None:
    n, c, k = counts
    estimate = pass_at(k, samples=n, passed=c)
    product = float(np.prod(1.0 - k / np.arange(n - c + 1, n + 1))) if n - c >= k else 0.0
    assert 0.0 <= estimate <= 1.0
    assert isclose(estimate, 1.0 - product, abs_tol=1e-9)
    assert isclose(pass_at(1, samples=n, passed=c), c / n)
    assert (estimate > 0.0) == (c > 0)
    if k < n:
        assert pass_at(k + 1, samples=n, passed=c) >= estimate


@pytest.mark.parametrize(("k", "samples", "passed"), [(0, 4, 1), (5, 4, 1), (1, 4, 5), (1, 4, -1)])
def test_more_samples_than_there_are_have_no_estimate(k: int, samples: int, passed: int) -> None:
    with pytest.raises(ValueError, match="no pass@"):
        pass_at(k, samples=samples, passed=passed)


def test_k_is_every_power_of_two_up_to_the_samples() -> None:
    assert [powers_of_two(most) for most in (0, 1, 3, 4, 9)] == [[], [1], [1, 2], [1, 2, 4], [1, 2, 4, 8]]


@given(st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=4, max_size=4), min_size=1, max_size=6))
def test_the_mean_is_over_prompts_each_of_which_counts_alike(rewards: list[list[float]]) -> None:
    groups = [group(index, *map(sample, row)) for index, row in enumerate(rewards)]
    means = mean_pass_at(groups, 0.5)
    assert list(means) == [1, 2, 4]
    assert isclose(means[4], sum(max(row) >= 0.5 for row in rewards) / len(rewards))
    assert isclose(means[1], sum(reward >= 0.5 for row in rewards for reward in row) / (4 * len(rewards)))


def test_a_sample_without_a_score_counts_as_failed_as_not_passed_and_as_zero() -> None:
    """Its reward may be left over from another attempt: it is not believed."""
    result = summarise(
        [group(0, sample(1.0), sample(1.0, Status.FAILED)), group(1, sample(1.0, Status.TRUNCATED), sample(0.0, Status.ABORTED))]
    )
    assert (result.mean_reward, result.failed, result.truncated) == (0.5, 0.5, 0.25)
    assert result.pass_at == {1: 0.5, 2: 1.0}


def test_a_scoring_that_was_killed_is_no_score() -> None:
    """It trains as reward 0, which keeps the policy from learning to hang its scorer; but a set's result says how often it happened."""
    killed = replace(sample(0.0), reason="scorer killed after 5 s")
    result = summarise([group(0, sample(1.0), killed)], pass_reward=0.0)
    assert (result.mean_reward, result.failed, result.pass_at[1]) == (0.5, 0.5, 0.5)


def test_what_passes_is_the_sets_own_affair() -> None:
    groups = [group(0, sample(0.6), sample(0.2))]
    assert summarise(groups, pass_reward=0.5).pass_at == {1: 0.5, 2: 1.0}
    assert summarise(groups).pass_at == {1: 0.0, 2: 0.0}


def test_versions_are_weighted_by_their_tokens() -> None:
    mixed = Sample(np.arange(4, dtype=np.int32), np.zeros(4, np.float32), full_mask(4), ((3, 3), (4, 1)), Status.COMPLETED, 1.0)
    result = summarise([group(0, mixed, sample(0.0, version=3))])
    assert (result.version_mean, result.mixed_version, result.mean_length) == (pytest.approx(19 / 6), 0.5, 3.0)


def test_no_groups_are_no_result_that_divides_by_zero() -> None:
    assert (summarise([]).num_samples, dict(summarise([]).pass_at)) == (0, {})

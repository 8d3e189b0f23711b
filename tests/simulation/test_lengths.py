"""Laws of lengths: what they say of themselves is what is drawn, and the same is drawn again."""

from __future__ import annotations

import math
from statistics import fmean, stdev

import pytest
from asyncrl.errors import OptionError
from asyncrl.simulation.lengths import ConstantLengths, Lengths, LognormalLengths, RecordedGroup, RecordedLengths, uniform
from hypothesis import given
from hypothesis import strategies as st

MANY = 40_000


def drawn(law: Lengths, count: int = MANY) -> list[int]:
    return [law.sample(number // 8, number % 8)[0] for number in range(count)]


def test_constant_lengths_are_constant() -> None:
    law = ConstantLengths(17)
    assert set(drawn(law, 100)) == {17} and law.mean == law.longest == 17


def test_lognormal_lengths_have_the_mean_and_the_tail_they_say() -> None:
    law = LognormalLengths(500, sigma=1.0, clip=4.0, seed=3)
    lengths = drawn(law)
    assert law.longest == max(lengths) == 2000
    assert law.mean == pytest.approx(0.931 * 500, rel=0.001)
    assert fmean(lengths) == pytest.approx(law.mean, rel=0.02)


def test_without_a_clip_the_mean_is_the_one_asked_for_and_sigma_that_of_the_logarithm() -> None:
    law = LognormalLengths(500, sigma=0.5)
    lengths = drawn(law)
    assert law.mean == 500 and law.longest == math.inf
    assert fmean(lengths) == pytest.approx(500, rel=0.02)
    assert stdev(map(math.log, lengths)) == pytest.approx(0.5, rel=0.02)


def test_no_sample_is_shorter_than_a_token() -> None:
    assert min(drawn(LognormalLengths(1, sigma=2.0), 1000)) == 1


@given(seed=st.integers(0, 2**63), prompt_id=st.integers(0, 10**9), index=st.integers(0, 1000))
def test_a_length_is_a_pure_function_of_seed_prompt_and_index(seed: int, prompt_id: int, index: int) -> None:
    first, second = (LognormalLengths(100, sigma=1.0, seed=seed) for _ in range(2))
    second.sample(prompt_id + 1, index)
    assert first.sample(prompt_id, index) == second.sample(prompt_id, index)


def test_seeds_prompts_and_indices_differ() -> None:
    numbers = [uniform(seed, prompt, index) for seed in range(8) for prompt in range(40) for index in range(40)]
    assert len(set(numbers)) == len(numbers)
    assert all(0 < number < 1 for number in numbers)
    assert fmean(numbers) == pytest.approx(0.5, abs=0.01)


def test_recorded_lengths_come_in_their_order_and_from_the_first_again() -> None:
    law = RecordedLengths([RecordedGroup((3, 5), (0.5, 1.5)), RecordedGroup((7,))])
    assert [law.sample(prompt, index) for prompt in range(3) for index in range(2)] == [
        (3, 0.5),
        (5, 1.5),
        (7, 0.0),
        (7, 0.0),
        (3, 0.5),
        (5, 1.5),
    ]
    assert (law.mean, law.longest) == (5.0, 7.0)


@pytest.mark.parametrize(
    ("group", "fault"),
    [
        (RecordedGroup(()), "recorded group 2 has no lengths"),
        (RecordedGroup((4, -1)), "recorded group 2 has a length below 1: -1"),
        (RecordedGroup((4, 4), seconds=(1.0,)), "recorded group 2 has 2 lengths but 1 seconds"),
        (RecordedGroup((4,), seconds=(0.0,)), "recorded group 2 has seconds that are not above 0"),
        (RecordedGroup((4,), rewards=(math.nan,)), "recorded group 2 has rewards that are not finite"),
    ],
)
def test_recorded_groups_that_make_no_sense_are_named(group: RecordedGroup, fault: str) -> None:
    with pytest.raises(OptionError, match=fault):
        RecordedLengths([RecordedGroup((1,)), group])


def test_no_recorded_group_is_an_error() -> None:
    with pytest.raises(OptionError, match="no recorded group"):
        RecordedLengths([])


@pytest.mark.parametrize(("mean", "sigma", "clip"), [(0.5, 1, 4), (100, -1, 4), (100, 1, 0), (math.inf, 1, 4)])
def test_impossible_laws_are_refused(mean: float, sigma: float, clip: float) -> None:
    with pytest.raises(OptionError, match="lognormal lengths need"):
        LognormalLengths(mean, sigma, clip)

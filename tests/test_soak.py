"""The report of `make soak`: a slope by least squares over the second half, and when it is too much."""

from __future__ import annotations

import pytest
from soak import Finding, Series


def series(*values: float) -> Series:
    return Series([10.0 * number for number in range(len(values))], list(values))


def test_slope_is_that_of_a_line() -> None:
    assert series(1.0, 3.0, 5.0, 7.0).slope == pytest.approx(0.2)
    assert series(1.0, 3.0, 5.0, 7.0).growth == pytest.approx(6.0)
    assert series(4.0, 4.0, 4.0).slope == series(4.0).slope == series().slope == 0.0


def test_what_goes_up_and_comes_down_again_does_not_grow() -> None:
    bursts = series(*([4.0, 4.0, 4.0, 72.0] * 10), *([4.0, 72.0, 72.0, 72.0] * 10))
    assert bursts.slope > 0 == bursts.growth
    busier = series(*([4.0, 4.0, 4.0, 72.0] * 10), *([72.0] * 40))
    assert busier.outermost(min).slope > 0 == busier.growth
    leaking = series(*(4.0 + number // 4 + 68.0 * (number % 4 == 3) for number in range(80)))
    assert leaking.growth == pytest.approx(20.0, abs=2.0)


def test_the_start_of_a_run_is_left_out() -> None:
    whole = series(0.0, 50.0, 90.0, 100.0, 100.0, 100.0, 100.0)
    assert whole.second_half().values == [100.0] * 4
    assert whole.slope > 0 == whole.second_half().slope


@pytest.mark.parametrize(
    ("quantity", "mean", "growth", "flat"),
    [("memory", 100.0, 7.0, True), ("memory", 100.0, 9.0, False), ("memory", 1000.0, 15.0, True), ("files", 1000.0, 4.0, False)],
)
def test_little_memory_is_noise_and_a_few_files_are_a_leak(quantity: str, mean: float, growth: float, flat: bool) -> None:
    assert Finding("driver", quantity, mean, 0.0, growth, 100).flat is flat

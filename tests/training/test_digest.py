"""The digest is what its formula says, whatever way it is computed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from asyncrl.training.digest import PERIOD, digest_lines, tensor_line, weights_digest


def by_the_formula(name: str, tensor: torch.Tensor) -> str:
    """s1 and s2 with Python's own integers."""
    size = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}[tensor.element_size()]
    bits = [int(b) for b in tensor.contiguous().reshape(-1).view(getattr(torch, size)).numpy()]
    s1, s2 = sum(bits), sum(b * (i % PERIOD + 1) for i, b in enumerate(bits))
    return f"{name} {str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)} {s1 % 2**64} {s2 % 2**64}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.uint8])
@pytest.mark.parametrize("count", [0, 1, PERIOD, PERIOD + 1, 3 * PERIOD + 7])
def test_a_tensors_line_is_what_the_formula_says(dtype: torch.dtype, count: int) -> None:
    tensor = torch.from_numpy(np.random.default_rng(0).normal(0, 100, count)).to(dtype)
    assert tensor_line("w", tensor) == by_the_formula("w", tensor)


def test_a_tensor_that_is_not_contiguous_counts_in_its_own_order() -> None:
    tensor = torch.arange(12.0).reshape(3, 4).t()
    assert tensor_line("w", tensor) == by_the_formula("w", tensor)


def test_changed_swapped_and_misplaced_weights_have_other_digests() -> None:
    a, b = torch.arange(6.0), torch.arange(6.0) + 1
    digests = {
        weights_digest([("x", a), ("y", b)]),
        weights_digest([("x", b), ("y", a)]),
        weights_digest([("x", a.reshape(2, 3)), ("y", b)]),
        weights_digest([("x", a.flip(0)), ("y", b)]),
        weights_digest([("x", a)]),
    }
    assert len(digests) == 5


def test_the_order_of_the_tensors_does_not_count() -> None:
    lines = [tensor_line("x", torch.arange(3.0)), tensor_line("y", torch.arange(4.0))]
    assert digest_lines(lines) == digest_lines(lines[::-1])

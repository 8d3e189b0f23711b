"""A digest of weights that trainer and engine compute alike, on any device, without moving the tensors off it.

For each tensor the raw bits are read as integers b_0 … b_{n-1}; s1 = Σ b_i and s2 = Σ b_i · (i mod 65521 + 1), both modulo 2**64. The
digest is SHA-256 over the sorted lines ``name dtype shape s1 s2``. It detects changed, swapped and misplaced weights; it is no defence
against an adversary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

PERIOD = 65521


def tensor_line(name: str, tensor: torch.Tensor) -> str:
    """Return one tensor's line of the digest. Any dtype of 1, 2, 4 or 8 bytes."""
    import torch

    flat = tensor.detach().contiguous().reshape(-1)
    bits = flat.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()])
    columns = _column_sums(bits)
    s1 = int(columns.sum())
    s2 = int((columns * torch.arange(1, PERIOD + 1, device=columns.device)).sum())
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{name} {dtype} {tuple(tensor.shape)} {s1 % 2**64} {s2 % 2**64}"


def _column_sums(bits: torch.Tensor) -> torch.Tensor:
    """int64[PERIOD]: sums of all integers whose positions are equal modulo PERIOD, so that no integer is multiplied on its own."""
    import torch

    sums = torch.zeros(PERIOD, dtype=torch.int64, device=bits.device)
    whole = 0
    if bits.device.type != "cpu":  # one kernel; on a CPU, rows that are added one by one stay in its cache
        whole = len(bits) - len(bits) % PERIOD
        sums += bits[:whole].view(-1, PERIOD).sum(0, dtype=torch.int64)
    for start in range(whole, len(bits), PERIOD):
        row = bits[start : start + PERIOD]
        sums[: len(row)] += row
    return sums


def digest_lines(lines: Iterable[str]) -> str:
    """Return the digest of a model from its tensors' lines, in any order."""
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def weights_digest(named: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Return the digest of named tensors (a model's `named_parameters()`, where tied weights appear once)."""
    return digest_lines(tensor_line(name, tensor) for name, tensor in named)

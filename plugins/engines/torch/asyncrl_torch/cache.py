"""The key-value cache: one row a running request, rows 0 to n-1 always in use, so that a batch is a view and never a copy.

It fits the `Cache` interface of transformers: a model calls `update` once a layer with the new keys and values and attends to what
that returns. Which rows and positions those are was said before by `open_window`.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache

GRAIN = 16
"""Attended lengths are rounded up to this, so that views and kernels' shapes change seldom."""


def rounded(length: int) -> int:
    return -(-length // GRAIN) * GRAIN


class SlotCache(Cache):
    """Keys and values of all layers, float[layers, rows, heads, length, head size].

    It grows with what is needed. Rows grow by doubling; lengths by an eighth, because attention reads memory without gaps
    nearly twice as fast, and how long sequences get is settled early in a run.

    Args:
        layers: number of attention layers.
        key_shape, value_shape: (heads, head size) of each.
    """

    def __init__(
        self, layers: int, key_shape: tuple[int, int], value_shape: tuple[int, int], dtype: torch.dtype, device: torch.device
    ) -> None:
        self.layers = []  # the base class keeps per-layer objects here; this one needs none
        self.offloading = False
        self.rows = 0
        self.length = 0
        self._num_layers = layers
        self._shapes = (key_shape, value_shape)
        self._dtype = dtype
        self._device = device
        self._stores: list[torch.Tensor] = [self._zeros(0, 0, shape) for shape in self._shapes]
        self._window: tuple[int, int, int] = (-1, -1, -1)
        self._views: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._bases: list[torch.Tensor] = []
        self._slots: list[torch.Tensor] = []
        self._flat: list[list[torch.Tensor]] = []

    def _zeros(self, rows: int, length: int, shape: tuple[int, int]) -> torch.Tensor:
        # zeros, not empty: a masked position still takes part with weight 0, and 0 times NaN is NaN
        heads, size = shape
        return torch.zeros(self._num_layers, rows, heads, length, size, dtype=self._dtype, device=self._device)

    def reserve(self, rows: int, length: int) -> None:
        """Make room for `rows` rows of `length` tokens."""
        if rows <= self.rows and length <= self.length:
            return
        rows = self.rows if rows <= self.rows else max(rows, 2 * self.rows)
        length = self.length if length <= self.length else rounded(max(length, self.length * 9 // 8))
        for which, old in enumerate(self._stores):
            new = self._zeros(rows, length, self._shapes[which])
            new[:, : self.rows, :, : self.length] = old
            self._stores[which] = new
        self.rows, self.length = rows, length
        self._flat = [
            [layer.view(-1, shape[1]) for layer in store] for store, shape in zip(self._stores, self._shapes, strict=True)
        ]
        self._window = (-1, -1, -1)

    def open_window(self, first: int, count: int, length: int, positions: torch.Tensor) -> None:
        """Let the next forward pass write at int64[count, new] `positions` of rows `first` to `first + count - 1` and attend to
        the first `length` positions there."""
        if self._window != (first, count, length):
            self._window = (first, count, length)
            keys, values = self._stores
            last = first + count
            self._views = [
                (keys[layer, first:last, :, :length], values[layer, first:last, :, :length]) for layer in range(self._num_layers)
            ]
            rows = torch.arange(first, last, device=self._device)[:, None]
            self._bases = [
                ((rows * heads + torch.arange(heads, device=self._device)) * self.length)[:, :, None] for heads, _ in self._shapes
            ]
        self._slots = [(base + positions[:, None, :]).reshape(-1) for base in self._bases[:1]]
        if self._shapes[0][0] == self._shapes[1][0]:
            self._slots *= 2
        else:
            self._slots.append((self._bases[1] + positions[:, None, :]).reshape(-1))

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new keys and values, float[rows, heads, new, head size], and return all of the window's."""
        keys, values = self._flat
        keys[layer_idx].index_copy_(0, self._slots[0], key_states.reshape(-1, key_states.shape[-1]))
        values[layer_idx].index_copy_(0, self._slots[1], value_states.reshape(-1, value_states.shape[-1]))
        return self._views[layer_idx]

    def copy_row(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one row over another's."""
        for store in self._stores:
            store[:, target, :, :length] = store[:, source, :, :length]

    def read_row(self, row: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a copy of the first `length` positions of a row."""
        keys, values = (store[:, row, :, :length].clone() for store in self._stores)
        return keys, values

    def write_row(self, row: int, content: tuple[torch.Tensor, torch.Tensor], length: int) -> None:
        """Write the first `length` positions of what `read_row` returned."""
        for store, part in zip(self._stores, content, strict=True):
            store[:, row, :, :length] = part[:, :, :length]

    # What models ask beside `update`; masks and positions are always passed in, so the answers only have to exist.

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: Any, layer_idx: int = 0) -> tuple[int, int]:
        return self._window[2], 0

"""The prefix cache: keys and values of prompts, so that what requests have in common is computed once.

An entry is one prompt's tokens and their cache. A new prompt may reuse any entry's head that it shares: whole prompts are found by
their tokens, shorter heads by chained hashes of blocks, and every find is compared token by token before it counts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

BLOCK = 16

KeysValues: TypeAlias = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Entry:
    tokens: tuple[int, ...]
    content: KeysValues


class PrefixCache:
    """Least recently used entries leave first, when there are more than `max_entries` or `max_tokens` in all.

    Entries are only valid for the weights that made them: call `clear` at every change of the weights.
    """

    def __init__(self, max_entries: int, max_tokens: int) -> None:
        self._max_entries = max_entries
        self._max_tokens = max_tokens
        self._entries: OrderedDict[tuple[int, ...], Entry] = OrderedDict()
        self._blocks: dict[int, tuple[int, ...]] = {}
        self.num_tokens = 0

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, tokens: Sequence[int]) -> tuple[int, KeysValues | None]:
        """Return how many leading tokens are cached, and the cache to copy them from."""
        key = tuple(tokens)
        whole = self._entries.get(key)
        if whole is not None:
            self._entries.move_to_end(key)
            return len(key), whole.content
        best: Entry | None = None
        for chain in _block_hashes(key):
            owner = self._blocks.get(chain)
            entry = self._entries.get(owner) if owner is not None else None
            if entry is None:
                break
            best = entry
        if best is None:
            return 0, None
        common = _common(key, best.tokens)
        if common == 0:
            return 0, None
        self._entries.move_to_end(best.tokens)
        return common, best.content

    def add(self, tokens: Sequence[int], content: KeysValues) -> None:
        """Keep the cache of `tokens`."""
        key = tuple(tokens)
        if self._max_entries == 0 or not key or len(key) > self._max_tokens or key in self._entries:
            return
        self._entries[key] = Entry(key, content)
        self.num_tokens += len(key)
        for chain in _block_hashes(key):
            self._blocks[chain] = key
        while len(self._entries) > self._max_entries or self.num_tokens > self._max_tokens:
            old, _ = self._entries.popitem(last=False)
            self.num_tokens -= len(old)
            for chain in _block_hashes(old):
                if self._blocks.get(chain) == old:
                    del self._blocks[chain]

    def clear(self) -> None:
        self._entries.clear()
        self._blocks.clear()
        self.num_tokens = 0


def _block_hashes(tokens: tuple[int, ...]) -> Iterator[int]:
    chain = 0
    for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
        chain = hash((chain, tokens[start : start + BLOCK]))
        yield chain


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    count = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        count += 1
    return count

"""What scripted engines answer: token ids and log-probabilities that take no memory of their own."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


class Answers:
    """Token ids that count up modulo the vocabulary, and log-probabilities of -1: views of two arrays that everybody shares."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._grow(1024)

    def take(self, start: int, count: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return int32[count] from `start` on, and float32[count]; neither can be written to."""
        start %= self._vocab_size
        if start + count > len(self._token_ids):
            self._grow(2 * (start + count))
        return self._token_ids[start : start + count], self._logprobs[:count]

    def _grow(self, size: int) -> None:
        self._token_ids = (np.arange(size) % self._vocab_size).astype(np.int32)
        self._logprobs = np.full(size, -1.0, np.float32)
        self._token_ids.setflags(write=False)
        self._logprobs.setflags(write=False)


@lru_cache(maxsize=64)
def answers(vocab_size: int) -> Answers:
    """Return those of a vocabulary, the same for every engine."""
    return Answers(vocab_size)

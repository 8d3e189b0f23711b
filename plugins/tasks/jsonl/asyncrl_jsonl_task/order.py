"""Which row comes at which position of the endless training stream."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


class Order:
    """Each epoch visits every row once, in a permutation of its own when shuffled; a pure function of seed and position."""

    def __init__(self, rows: int, seed: int, *, shuffle: bool) -> None:
        self._rows = rows
        self._seed = seed
        self._shuffle = shuffle
        self._permutation = lru_cache(maxsize=2)(self._permute)  # prompts of two epochs are asked for around their border

    def row(self, position: int) -> int:
        """Return the index of the row at `position`."""
        epoch, index = divmod(position, self._rows)
        return int(self._permutation(epoch)[index]) if self._shuffle else index

    def _permute(self, epoch: int) -> NDArray[np.int64]:
        # RandomState's stream is frozen for good, unlike default_rng's: a resumed run may have another numpy.
        words = [self._seed & 0xFFFFFFFF, self._seed >> 32 & 0xFFFFFFFF, epoch & 0xFFFFFFFF]
        return np.random.RandomState(words).permutation(self._rows)

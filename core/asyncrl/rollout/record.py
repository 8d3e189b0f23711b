"""The books of a rollout side at one moment: what another one goes on from when its process dies with every group in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

LOST = "lost"
"""Why tokens were not trained, and prompts issued again, of groups that died with the rollout side."""


@dataclass(frozen=True)
class HandedOut:
    """What is booked once the trainer has trained a batch; `tokens` and `masked_tokens` are of each group."""

    step: int
    prompt_ids: tuple[int, ...]
    tokens: tuple[int, ...]
    masked_tokens: tuple[int, ...]
    staleness: tuple[int, ...]
    lengths: NDArray[np.int64]
    rewards: NDArray[np.float32]
    age_share: dict[int, float]
    mixed: int
    truncated: int


@dataclass(frozen=True)
class Record:
    """Small at any time: it grows with what is open, not with the run.

    Attributes:
        serial: of two records, the greater one is the later.
        books: as `RolloutService.books` returns them.
        ledger: the part of `RolloutService.state` of this name.
        unfinished_tokens: generated tokens that had no fate yet.
        queued: prompts that waited to be issued again.
        batches_of_version, steps_left: see `Claims`.
        with_trainer: steps whose batches were handed out and not reported as trained.
    """

    serial: int
    books: dict[str, Any]
    ledger: dict[str, Any]
    unfinished_tokens: int
    queued: int
    batches_of_version: int
    steps_left: int
    with_trainer: tuple[int, ...]

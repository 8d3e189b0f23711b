"""The learning rate of each optimizer update: a pure function, so that a resumed run needs only the update's number."""

from __future__ import annotations

import math

from asyncrl_fsdp.options import FsdpOptions


def learning_rate(options: FsdpOptions, update: int, steps: int) -> float:
    """Return the learning rate of `update` (from 0) in a run of `steps` steps."""
    warmup = options.warmup_steps * options.updates_per_step
    if update < warmup:
        return options.learning_rate * (update + 1) / warmup
    total = max(steps * options.updates_per_step - warmup, 1)
    done = min((update - warmup) / total, 1.0)
    course = {"constant": 1.0, "linear": 1.0 - done, "cosine": 0.5 * (1 + math.cos(math.pi * done))}
    return options.learning_rate * course[options.lr_schedule]

"""Random prompts, lengths and rewards: a run without data and without a reward model, to stress the infrastructure."""

from __future__ import annotations

from asyncrl_random.producer import RandomProducer, RandomProducerOptions
from asyncrl_random.task import RandomTask, RandomTaskOptions

__all__ = ["RandomProducer", "RandomProducerOptions", "RandomTask", "RandomTaskOptions"]

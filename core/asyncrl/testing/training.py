"""Batches to train on: random prompts and responses within a vocabulary, of unequal lengths, ages and rewards."""

from __future__ import annotations

import numpy as np

from asyncrl.authoring import RunFacts
from asyncrl.samples import Group, Prompt, Sample, SamplingParams, Status, full_mask, merge_spans
from asyncrl.training.batch import flatten
from asyncrl.training.interfaces import TrainingBatch

VERSION = 5
"""That the trainer is about to improve; tokens are up to two versions older, unless the run is synchronous."""


def make_batch(run: RunFacts, vocabulary: int, step: int, *, masked: bool = False) -> TrainingBatch:
    """Return the batch of a step, drawn by its number.

    Args:
        vocabulary: token ids are below it.
        masked: whether a filter has left every sample out of the loss.
    """
    rng = np.random.default_rng(step)
    groups = []
    for number in range(run.batch_size):
        prompt = Prompt(number, rng.integers(0, vocabulary, rng.integers(2, 7)).astype(np.int32))
        samples = []
        for index in range(run.group_size):
            count = int(rng.integers(1, 12))
            ages = [0] if run.synchronous else [2, 1, 0][-(1 + index % 3) :]
            counts = [count // len(ages) + (place < count % len(ages)) for place in range(len(ages))]
            spans = merge_spans((VERSION - age, part) for age, part in zip(ages, counts, strict=True))
            logprobs = (-np.log(vocabulary) + 0.3 * rng.standard_normal(count)).clip(max=0.0).astype(np.float32)
            ids = rng.integers(0, vocabulary, count).astype(np.int32)
            samples.append(Sample(ids, logprobs, full_mask(count), spans, Status.COMPLETED, float(index % 2)))
        groups.append(Group(prompt, tuple(samples)))
    keep = np.zeros(run.batch_size * run.group_size, np.bool_) if masked else None
    params = SamplingParams(run.max_new_tokens, run.temperature, run.top_p, run.top_k)
    return flatten(groups, version=VERSION, step=step, params=params, keep=keep)

"""A batch whose token arrays are made when somebody looks at them: in a simulation hardly anybody does, and they are its bulk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.samples import Group, Sample, SamplingParams, full_mask
from asyncrl.training.batch import flatten
from asyncrl.training.interfaces import TrainingBatch

TOKEN_ARRAYS = ("token_ids", "loss_mask", "logprobs", "versions")


class OutlinedBatch(TrainingBatch):
    """Equals what `flatten` makes of the same groups.

    Attributes:
        source: the groups, in the order of the batch.
        keep: bool[samples], False where a batch filter left a sample out of the loss; None where all are in.
    """

    source: Sequence[Group]
    keep: NDArray[np.bool_] | None

    def __getattr__(self, name: str) -> Any:
        if name not in TOKEN_ARRAYS or "source" not in self.__dict__:
            raise AttributeError(name)
        params = SamplingParams(self.max_new_tokens, self.temperature, self.top_p, self.top_k)
        flat = flatten(self.source, version=self.version, step=self.step, params=params, keep=self.keep)
        self.__dict__.update((array, getattr(flat, array)) for array in TOKEN_ARRAYS)
        return self.__dict__[name]


def outline(
    groups: Sequence[Group],
    *,
    version: int,
    step: int,
    params: SamplingParams,
    keep: NDArray[np.bool_] | None = None,
) -> OutlinedBatch:
    """Return the batch of some groups, in the order given; the arguments are those of `flatten`.

    Raises:
        ValueError: later, when its token arrays are looked at: a sample's arrays or spans differ in length.
    """
    samples = [sample for group in groups for sample in group.samples]
    sizes = np.asarray([len(group.samples) for group in groups], np.int64)
    prompts = np.repeat(np.asarray([len(group.prompt.token_ids) for group in groups], np.int32), sizes)
    lengths = np.asarray([len(sample.token_ids) for sample in samples], np.int64)
    starts = np.zeros(len(samples) + 1, np.int64)
    np.cumsum(prompts + lengths, out=starts[1:])
    batch = OutlinedBatch.__new__(OutlinedBatch)
    batch.__dict__.update(  # the dataclass is frozen and wants its token arrays
        source=groups,
        keep=keep,
        version=version,
        step=step,
        starts=starts,
        prompt_lengths=prompts,
        rewards=np.asarray([sample.reward for sample in samples], np.float32),
        groups=np.repeat(np.arange(len(groups), dtype=np.int32), sizes),
        prompt_ids=np.asarray([group.prompt_id for group in groups], np.int64),
        num_response_tokens=sum(map(_trained_tokens, samples)),
        temperature=params.temperature,
        max_new_tokens=params.max_new_tokens,
        top_p=params.top_p,
        top_k=params.top_k,
    )
    return batch


def _trained_tokens(sample: Sample) -> int:
    mask = sample.loss_mask
    return len(mask) if mask is full_mask(len(mask)) else int(np.count_nonzero(mask))

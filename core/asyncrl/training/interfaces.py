"""What a trainer plugin is given and returns. Numpy only: core never imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from asyncrl.rollout.engine import WeightBucket


@dataclass(frozen=True)
class TrainingBatch:
    """One batch, flattened: sample i is `token_ids[starts[i]:starts[i + 1]]`, prompt first.

    Attributes:
        version: weight version the trainer is about to improve.
        step: training step, from 1.
        token_ids: int32[total], prompt and response of every sample, one after the other.
        starts: int64[samples + 1], offsets into the flat arrays.
        prompt_lengths: int32[samples].
        loss_mask: bool[total], True for trained tokens; False on prompts and on samples a batch filter masked.
        logprobs: float32[total], the engine's log-probability of each token in nats; 0 where it generated nothing.
        versions: int32[total], weight version that generated each token; -1 on prompts.
        rewards: float32[samples].
        groups: int32[samples], index of each sample's group within the batch, ascending.
        prompt_ids: int64[groups], ascending.
        num_response_tokens: generated tokens of the batch *before* any masking: a reduction's denominator.
        temperature: at which the samples were drawn; the trainer divides its logits by it.
    """

    version: int
    step: int
    token_ids: NDArray[np.int32]
    starts: NDArray[np.int64]
    prompt_lengths: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    rewards: NDArray[np.float32]
    groups: NDArray[np.int32]
    prompt_ids: NDArray[np.int64]
    num_response_tokens: int
    temperature: float
    max_new_tokens: int
    top_p: float = 1.0
    top_k: int = -1

    @property
    def num_samples(self) -> int:
        return len(self.rewards)


@dataclass(frozen=True)
class TrainerPlace:
    """Where one rank runs. `master_address:master_port` is the rendezvous of the trainer's own process group."""

    rank: int
    world_size: int
    local_rank: int
    master_address: str
    master_port: int
    device: str
    model: Path
    publish_dtype: str
    steps: int
    seed: int
    timeout: float


@dataclass(frozen=True)
class TrainerFacts:
    """What a rank says of itself once it is open. `model_bytes` is the size of what a publication sends."""

    num_parameters: int
    model_bytes: int
    vocab_size: int
    digest: str


@dataclass(frozen=True)
class StepReport:
    """One training step; the same on every rank.

    Attributes:
        metrics: values by the name of a declared metric of the trainer plugin's `Metrics` (attribute name, without prefix).
        by_age: the same for metrics labelled by age in versions: {name: {age: value}}.
        update_norm: L2 norm of the parameter change over all updates of the step; 0 says that nothing changed.
        num_tokens: tokens that went through the forward pass, prompts included.
        busy_seconds: time spent in the step.
    """

    metrics: Mapping[str, float]
    update_norm: float
    num_tokens: int
    busy_seconds: float
    by_age: Mapping[str, Mapping[int, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Exported:
    """A complete Hugging Face directory. `digest` is over the weights as written (see `asyncrl.training.digest`)."""

    directory: Path
    num_bytes: int
    digest: str


@dataclass(frozen=True)
class WeightManifest:
    """What a broadcast sends."""

    buckets: tuple[WeightBucket, ...]
    num_bytes: int
    digest: str


@dataclass(frozen=True)
class WeightGroup:
    """The process group of a broadcast: trainer rank 0 is rank 0, engines follow.

    `packed` says in which form each bucket that can be packed (`WeightBucket.can_be_packed`) is sent: as one tensor, uint8[bytes], in
    which its tensors lie contiguous one behind the other, by one broadcast. Else each tensor has a broadcast of its own.
    """

    name: str
    address: str
    port: int
    world_size: int
    backend: str
    timeout: float
    packed: bool = False

"""Running sums over the trained tokens of a step, kept by age; one reduction over ranks gives every metric, overall and by age."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from asyncrl import TrainingBatch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl_fsdp.losses import MAX_LOG_RATIO

_COLUMNS = ("tokens", "ratio", "ratio_squared", "k1", "k3", "difference", "entropy", "clipped", "kept")


@dataclass(frozen=True)
class Statistics:
    """Sums by age.

    Attributes:
        ages: int[a], the ages in versions that occur among the batch's trained tokens, ascending.
        sums: float64[a, columns] on the trainer's device.
        largest: float64[a] there: the largest difference between the trainer's and the engine's log-probability.
    """

    ages: NDArray[np.int64]
    sums: Tensor
    largest: Tensor

    @classmethod
    def of(cls, batch: TrainingBatch, device: torch.device) -> Statistics:
        """Return empty sums for the ages of `batch`, which are the same on every rank."""
        ages = np.unique(batch.version - batch.versions[batch.loss_mask]).astype(np.int64)
        sums = torch.zeros(len(ages), len(_COLUMNS), dtype=torch.float64, device=device)
        return cls(ages, sums, torch.zeros(len(ages), dtype=torch.float64, device=device))

    def add(
        self, ages: NDArray[np.int64], logprobs: Tensor, engine: Tensor, entropy: Tensor, clipped: Tensor, kept: Tensor
    ) -> None:
        """Add the tokens of a micro-batch: arrays of one value a token, log-probabilities in nats, flags as bool."""
        log_ratio = (logprobs - engine).double()
        ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
        rows = torch.from_numpy(np.searchsorted(self.ages, ages)).to(self.sums.device)
        difference = log_ratio.abs()
        columns = [torch.ones_like(ratio), ratio, ratio.square(), -log_ratio, ratio - 1 - log_ratio, difference]
        columns += [entropy, clipped, kept]
        self.largest.scatter_reduce_(0, rows, difference, "amax")
        self.sums.index_add_(0, rows, torch.stack([column.double() for column in columns], dim=1))

    def metrics(self, generated: int) -> dict[str, float]:
        """Return the metrics over all ages. `generated` counts the batch's generated tokens before any masking."""
        total = dict(zip(_COLUMNS, self.sums.sum(0).tolist(), strict=True))
        values = _means(total)
        values.pop("tokens")
        values["entropy"] = total["entropy"] / max(total["tokens"], 1)
        values["masked_fraction"] = 1 - total["kept"] / max(generated, 1)
        return values

    def by_age(self) -> dict[str, dict[int, float]]:
        """Return the metrics labelled by age."""
        series: dict[str, dict[int, float]] = {}
        for age, row in zip(self.ages.tolist(), self.sums.tolist(), strict=True):
            for name, value in _means(dict(zip(_COLUMNS, row, strict=True))).items():
                series.setdefault(f"{name}_by_age", {})[age] = value
        series["largest_logprob_difference_by_age"] = dict(zip(self.ages.tolist(), self.largest.tolist(), strict=True))
        return series


def _means(sums: dict[str, float]) -> dict[str, float]:
    tokens = max(sums["tokens"], 1)
    squares = tokens * sums["ratio_squared"]
    return {
        "tokens": sums["tokens"],
        "effective_sample_size": sums["ratio"] ** 2 / squares if squares else 0.0,
        "ratio": sums["ratio"] / tokens,
        "kl_k1": sums["k1"] / tokens,
        "kl_k3": sums["k3"] / tokens,
        "logprob_difference": sums["difference"] / tokens,
        "clip_fraction": sums["clipped"] / tokens,
    }

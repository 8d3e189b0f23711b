"""Draw one token a row, each row with its own temperature, top-p and top-k, and its log-probability under just that distribution.

Top-k and top-p are applied jointly, as SGLang does: both cuts are taken on the distribution at the given temperature, and what passes
both is renormalised. A token is drawn by inverting the distribution function at one uniform number a row, so that what a request gets
does not depend on what else is in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from asyncrl_torch.requests import Request

BELOW_ONE = 1.0 - 2.0**-40
"""Keeps `uniform * total` below the total after rounding."""


class RowSampler:
    """The sampling parameters of the rows of one batch; made anew whenever the batch changes."""

    def __init__(self, requests: Sequence[Request], device: torch.device) -> None:
        params = [request.sampling for request in requests]
        greedy = [one.temperature == 0 for one in params]
        self._draws = [request.random.random for request in requests]
        self._device = device
        self._all_greedy = all(greedy)
        self._greedy = torch.tensor(greedy, device=device) if any(greedy) and not self._all_greedy else None
        self._temperature = self._top_p = self._top_k = None
        if any(one.temperature not in (0, 1) for one in params):
            values = [one.temperature or 1.0 for one in params]
            self._temperature = torch.tensor(values, device=device, dtype=torch.float32)[:, None]
        filtered = [one for one in params if one.temperature and (one.top_p < 1 or one.top_k)]
        if filtered:
            # 2 is never reached by a cumulative sum that rounding lifts above 1
            top_p = [one.top_p if one.temperature and one.top_p < 1 else 2.0 for one in params]
            top_k = [one.top_k if one.temperature and one.top_k else 2**62 for one in params]
            self._top_p = torch.tensor(top_p, device=device, dtype=torch.float32)[:, None]
            self._top_k = torch.tensor(top_k, device=device)[:, None]

    def distribution(self, logits: torch.Tensor) -> torch.Tensor:
        """Return float32[rows, vocabulary] log-probabilities of the sampling distribution; greedy rows at temperature 1."""
        if self._temperature is not None:
            logits = logits / self._temperature
        logprobs = torch.log_softmax(logits, dim=-1)
        if self._top_p is None or self._top_k is None:
            return logprobs
        ordered, order = logprobs.sort(dim=-1, descending=True, stable=True)
        probs = ordered.exp()
        before = probs.cumsum(dim=-1) - probs
        drop = (before > self._top_p) | (torch.arange(logits.shape[-1], device=logits.device) >= self._top_k)
        kept = torch.empty_like(ordered).scatter_(-1, order, ordered.masked_fill_(drop, float("-inf")))
        return torch.log_softmax(kept, dim=-1)

    def sample(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return int64[rows] tokens and float32[rows] log-probabilities for float32[rows, vocabulary] logits."""
        logprobs = self.distribution(logits)
        if self._all_greedy:
            tokens = logits.argmax(dim=-1, keepdim=True)
        else:
            uniform = torch.tensor([draw() for draw in self._draws], dtype=torch.float64, device=self._device)[:, None]
            cumulative = logprobs.exp().cumsum(dim=-1, dtype=torch.float64)
            tokens = torch.searchsorted(cumulative, cumulative[:, -1:] * (uniform * BELOW_ONE), right=True)
            tokens = tokens.clamp_(max=logits.shape[-1] - 1)  # only NaN gets past the end; the caller looks for it
            if self._greedy is not None:
                tokens = torch.where(self._greedy[:, None], logits.argmax(dim=-1, keepdim=True), tokens)
        return tokens[:, 0], logprobs.gather(-1, tokens)[:, 0]

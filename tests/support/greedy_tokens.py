"""Whether the tokens of one implementation are greedy under another one's log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence

import torch

NEAR_TIE = 1e-3  # float32 logits of two implementations differ by some 1e-5; tokens of other weights are whole units less likely


def check_greedy(logprobs: torch.Tensor, tokens: Sequence[int]) -> None:
    """Fail unless each token is the likeliest at its place, or so nearly so that rounding decides.

    Args:
        logprobs: float32[tokens, vocabulary], of a forward pass over the tokens themselves: what was decided by rounding once
            has no say in what comes after it.
        tokens: as they were generated.
    """
    assert len(logprobs) == len(tokens) > 0
    short = logprobs.max(-1).values - logprobs[range(len(tokens)), list(tokens)]
    worst = int(short.argmax())
    told = f"token {tokens[worst]} at place {worst} is by {short[worst]:.4g} less likely than {int(logprobs[worst].argmax())}"
    assert short[worst] < NEAR_TIE, told

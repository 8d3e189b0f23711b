"""The objective as tables of pure functions; a new formula is a function and a row.

Notation: p is the policy being trained, p_old the one of `old_policy`, p_engine the one that generated, r the rewards of one group, A the
advantage. Log-probabilities are float32 in nats, one value a trained token; every ratio is formed in log space.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Log-ratios are bounded by this before `exp`, so that one absurd token cannot make a loss infinite."""


@dataclass(frozen=True)
class Tokens:
    """The trained tokens of one micro-batch, flat.

    Attributes:
        logprobs: float32[n], log p, with gradient.
        old_logprobs: float32[n], log p_old, without.
        engine_logprobs: float32[n], log p_engine, without.
        advantages: float32[n], A of each token's sample.
        samples: int64[n], index of each token's sample, for formulas over whole sequences.
    """

    logprobs: Tensor
    old_logprobs: Tensor
    engine_logprobs: Tensor
    advantages: Tensor
    samples: Tensor


@dataclass(frozen=True)
class Limits:
    """The constants of the formulas. `dual_clip` 0 is off."""

    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float = 0.0
    tis_cap: float = 2.0


def ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Return exp(numerator - denominator) of two log-probabilities."""
    return (numerator - denominator).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


# Advantages: (rewards float[samples], groups int64[samples], ascending) -> float64[samples] ---------------------------------


def grpo(rewards: Tensor, groups: Tensor) -> Tensor:
    """(r - mean) / (std + 1e-6), std with n - 1; A = r for a group of one (Shao et al. 2024; as in verl)."""
    centred, sizes = _centred(rewards, groups)
    variance = torch.zeros_like(sizes).index_add_(0, groups, centred.square()) / (sizes - 1).clamp(min=1)
    return torch.where(sizes[groups] > 1, centred / (variance.sqrt()[groups] + 1e-6), centred)


def r_mean(rewards: Tensor, groups: Tensor) -> Tensor:
    """r - mean; A = r for a group of one (Dr. GRPO, Liu et al. 2025)."""
    return _centred(rewards, groups)[0]


def raw_reward(rewards: Tensor, groups: Tensor) -> Tensor:
    """A = r."""
    return rewards.double()


def _centred(rewards: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    rewards = rewards.double()
    count = int(groups.max()) + 1 if len(groups) else 0
    sizes = torch.zeros(count, dtype=torch.float64).index_add_(0, groups, torch.ones_like(rewards))
    means = torch.zeros_like(sizes).index_add_(0, groups, rewards) / sizes.clamp(min=1)
    return rewards - torch.where(sizes > 1, means, 0.0)[groups], sizes


ADVANTAGES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"grpo": grpo, "r-mean": r_mean, "none": raw_reward}


# Policy losses: (tokens, limits) -> (loss float32[n], clipped bool[n]); clipped tokens have no gradient -----------------------


def ppo_clip(tokens: Tokens, limits: Limits) -> tuple[Tensor, Tensor]:
    """-min(rho A, clip(rho, 1 - low, 1 + high) A) with rho = p / p_old (Schulman et al. 2017).

    With `dual_clip` c, tokens of negative advantage take the smaller of that and -c A, which bounds their loss (Ye et al. 2020).
    """
    rho = ratio(tokens.logprobs, tokens.old_logprobs)
    free = -rho * tokens.advantages
    bounded = -rho.clamp(1 - limits.clip_low, 1 + limits.clip_high) * tokens.advantages
    loss = torch.maximum(free, bounded)
    clipped = bounded > free
    if limits.dual_clip:
        ceiling = -limits.dual_clip * tokens.advantages
        over = (tokens.advantages < 0) & (loss > ceiling)
        loss, clipped = torch.where(over, ceiling, loss), clipped | over
    return loss, clipped


def policy_gradient(tokens: Tokens, limits: Limits) -> tuple[Tensor, Tensor]:
    """-A log p (REINFORCE)."""
    return -tokens.advantages * tokens.logprobs, torch.zeros_like(tokens.logprobs, dtype=torch.bool)


POLICY_LOSSES: dict[str, Callable[[Tokens, Limits], tuple[Tensor, Tensor]]] = {
    "ppo-clip": ppo_clip,
    "policy-gradient": policy_gradient,
}


# Corrections: (tokens, limits) -> weight float32[n] without gradient; 0 masks a token ---------------------------------------


def no_correction(tokens: Tokens, limits: Limits) -> Tensor:
    """1."""
    return torch.ones_like(tokens.old_logprobs)


def tis(tokens: Tokens, limits: Limits) -> Tensor:
    """min(p_old / p_engine, C): truncated importance sampling (Yao et al. 2025)."""
    return ratio(tokens.old_logprobs, tokens.engine_logprobs).clamp(max=limits.tis_cap).detach()


CORRECTIONS: dict[str, Callable[[Tokens, Limits], Tensor]] = {"none": no_correction, "tis": tis}


# Reductions: (generated tokens int64[samples] before any masking, max_new_tokens) -> float64[samples], the weight of each of a
# sample's token losses in the sum. So a loss is a plain sum, over micro-batches and ranks alike. -------------------------------


def token_mean(counts: Tensor, max_new_tokens: int) -> Tensor:
    """1 / all tokens (DAPO, Yu et al. 2025)."""
    return torch.full(counts.shape, 1.0 / max(int(counts.sum()), 1), dtype=torch.float64)


def sequence_mean(counts: Tensor, max_new_tokens: int) -> Tensor:
    """1 / (samples x tokens of the sample): the mean of the samples' means (GRPO)."""
    return 1.0 / (len(counts) * counts.double().clamp(min=1))


def constant(counts: Tensor, max_new_tokens: int) -> Tensor:
    """1 / (samples x max_new_tokens) (Dr. GRPO)."""
    return torch.full(counts.shape, 1.0 / (len(counts) * max_new_tokens), dtype=torch.float64)


REDUCTIONS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "token-mean": token_mean,
    "sequence-mean": sequence_mean,
    "constant": constant,
}

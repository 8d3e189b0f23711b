"""Each formula against its published definition, written anew in float64: values and gradients."""

from __future__ import annotations

import math

import pytest
import torch
from asyncrl_fsdp.losses import ADVANTAGES, CORRECTIONS, POLICY_LOSSES, REDUCTIONS, Limits, Tokens
from torch import Tensor

N = 400


@pytest.fixture
def tokens() -> Tokens:
    torch.manual_seed(0)
    engine = -torch.rand(N) * 4
    old = engine + 0.6 * torch.randn(N)
    logprobs = (old + 0.4 * torch.randn(N)).requires_grad_()
    return Tokens(logprobs, old, engine, torch.randn(N), torch.arange(N) // 10)


def value_and_gradient(loss: Tensor, logprobs: Tensor) -> tuple[list[float], list[float]]:
    (gradient,) = torch.autograd.grad(loss.sum(), logprobs)
    return loss.detach().tolist(), gradient.tolist()


def ppo_reference(logp: float, old: float, advantage: float, low: float, high: float, dual: float) -> tuple[float, float]:
    """verl's compute_policy_loss, one token at a time, with its derivative by log p."""
    ratio = math.exp(logp - old)
    free, bounded = -advantage * ratio, -advantage * min(max(ratio, 1 - low), 1 + high)
    loss, slope = (free, free) if free >= bounded else (bounded, 0.0)
    if dual and advantage < 0 and -advantage * dual < loss:
        loss, slope = -advantage * dual, 0.0
    return loss, slope


@pytest.mark.parametrize("dual", [0.0, 1.5])
def test_ppo_clip(tokens: Tokens, dual: float) -> None:
    loss, clipped = POLICY_LOSSES["ppo-clip"](tokens, Limits(clip_low=0.2, clip_high=0.28, dual_clip=dual))
    values, gradients = value_and_gradient(loss, tokens.logprobs)
    rows = zip(tokens.logprobs.tolist(), tokens.old_logprobs.tolist(), tokens.advantages.tolist(), strict=True)
    expected = [ppo_reference(*row, 0.2, 0.28, dual) for row in rows]
    assert values == pytest.approx([value for value, _ in expected], rel=1e-5, abs=1e-6)
    assert gradients == pytest.approx([slope for _, slope in expected], rel=1e-5, abs=1e-6)
    assert clipped.tolist() == [slope == 0 for _, slope in expected]
    assert 0 < clipped.float().mean() < 1


def test_policy_gradient(tokens: Tokens) -> None:
    loss, clipped = POLICY_LOSSES["policy-gradient"](tokens, Limits())
    values, gradients = value_and_gradient(loss, tokens.logprobs)
    pairs = list(zip(tokens.logprobs.tolist(), tokens.advantages.tolist(), strict=True))
    assert values == pytest.approx([-advantage * logp for logp, advantage in pairs], rel=1e-6)
    assert gradients == pytest.approx([-advantage for _, advantage in pairs], rel=1e-6)
    assert not clipped.any()


def test_tis(tokens: Tokens) -> None:
    weights = CORRECTIONS["tis"](tokens, Limits(tis_cap=2.0))
    pairs = zip(tokens.old_logprobs.tolist(), tokens.engine_logprobs.tolist(), strict=True)
    assert weights.tolist() == pytest.approx([min(math.exp(old - engine), 2.0) for old, engine in pairs], rel=1e-5)
    assert (weights == 2.0).any()


def test_tis_carries_no_gradient(tokens: Tokens) -> None:
    own = Tokens(tokens.logprobs, tokens.logprobs, tokens.engine_logprobs, tokens.advantages, tokens.samples)
    assert not CORRECTIONS["tis"](own, Limits()).requires_grad


def test_no_correction(tokens: Tokens) -> None:
    assert CORRECTIONS["none"](tokens, Limits()).tolist() == [1.0] * N


REWARDS = [[1.0, 0.0, 0.0, 1.0, 1.0], [0.25, 0.5], [0.7], [0.1, 0.1, 0.1]]


def advantages(name: str) -> list[float]:
    flat = torch.tensor([reward for group in REWARDS for reward in group])
    groups = torch.tensor([index for index, group in enumerate(REWARDS) for _ in group])
    return ADVANTAGES[name](flat, groups).tolist()


def test_grpo_advantage() -> None:
    expected = []
    for group in REWARDS:
        mean = sum(group) / len(group) if len(group) > 1 else 0.0
        std = math.sqrt(sum((r - mean) ** 2 for r in group) / (len(group) - 1)) if len(group) > 1 else 1.0
        expected += [(r - mean) / (std + 1e-6) for r in group]
    assert advantages("grpo") == pytest.approx(expected, rel=2e-6, abs=1e-9)


def test_group_without_variance_has_no_advantage() -> None:
    assert advantages("grpo")[-3:] == [0.0, 0.0, 0.0]


def test_r_mean_advantage() -> None:
    expected = [r - (sum(group) / len(group) if len(group) > 1 else 0.0) for group in REWARDS for r in group]
    assert advantages("r-mean") == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_raw_rewards() -> None:
    assert advantages("none") == pytest.approx([r for group in REWARDS for r in group])


COUNTS = torch.tensor([3, 1, 8])


def reduce(name: str, losses: list[list[float]]) -> float:
    weights = REDUCTIONS[name](COUNTS, 10).tolist()
    return sum(weight * sum(own) for weight, own in zip(weights, losses, strict=True))


def test_reductions() -> None:
    losses = [[1.0, 2.0, 4.0], [5.0], [0.5] * 8]
    assert reduce("token-mean", losses) == pytest.approx((7 + 5 + 4) / 12)
    assert reduce("sequence-mean", losses) == pytest.approx((7 / 3 + 5 + 0.5) / 3)
    assert reduce("constant", losses) == pytest.approx((7 + 5 + 4) / 30)

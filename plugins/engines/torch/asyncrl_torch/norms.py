"""Replace a model's RMS norms by torch's own operator: one call in place of six, about a tenth of a small model's decode step.

Only norms that are proven to compute the same are replaced, so a model whose norm differs (such as Gemma's `1 + weight`) keeps it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

TOLERANCE = 1e-5


@torch.no_grad()
def fuse_norms(model: torch.nn.Module) -> int:
    """Replace what can be replaced; return how many. float32 models only: in lower precision the rounding would differ."""
    if model.dtype != torch.float32:
        return 0
    proven: dict[type[torch.nn.Module], bool] = {}
    count = 0
    for module in model.modules():
        kind = type(module)
        if not kind.__name__.endswith("RMSNorm") or not hasattr(module, "variance_epsilon"):
            continue
        if kind not in proven:
            proven[kind] = _same(module)
        if proven[kind]:
            module.forward = _fused(module)
            count += 1
    return count


def _fused(norm: torch.nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    weight, shape, epsilon = norm.weight, tuple(norm.weight.shape), norm.variance_epsilon

    def forward(hidden_states: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(hidden_states, shape, weight, epsilon)

    return forward


def _same(norm: torch.nn.Module) -> bool:
    size = norm.weight.numel()
    values = torch.linspace(-3, 5, 4 * size, device=norm.weight.device).sin().reshape(4, size)
    kept = norm.weight.clone()
    norm.weight.copy_(torch.linspace(0.5, 1.5, size).reshape(norm.weight.shape))
    try:
        return bool(torch.allclose(norm(values), _fused(norm)(values), atol=TOLERANCE, rtol=TOLERANCE))
    finally:
        norm.weight.copy_(kept)

"""Logs to Weights & Biases from a process of its own, so that nothing W&B does stops or slows the run."""

from __future__ import annotations

from asyncrl_wandb.options import WandbOptions
from asyncrl_wandb.plugin import Wandb, WandbMetrics

__all__ = ["Wandb", "WandbMetrics", "WandbOptions"]

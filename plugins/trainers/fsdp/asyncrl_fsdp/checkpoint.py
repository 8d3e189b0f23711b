"""Saves and reads what training needs to go on, sharded, with torch.distributed.checkpoint; a checkpoint fits any number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from asyncrl.errors import CheckpointError
from torch.distributed.checkpoint.api import CheckpointException

from asyncrl_fsdp.step import Stepper


def save(stepper: Stepper, directory: Path) -> None:
    """Write model, optimizer, number of updates and random state; collective. Raises `CheckpointError`."""
    directory.mkdir(parents=True, exist_ok=True)
    state = _state(stepper)
    state[_rng_key()] = torch.get_rng_state()
    try:
        dcp.save(state, checkpoint_id=directory)
    except (OSError, RuntimeError, CheckpointException) as cause:
        raise CheckpointError(f"can't write the trainer's state to {directory}: {_reason(cause)}") from cause


def load(stepper: Stepper, directory: Path) -> None:
    """Read what `save` wrote, whatever the number of ranks then; collective. Raises `CheckpointError`."""
    state = _state(stepper)
    try:
        stored = dcp.FileSystemReader(directory).read_metadata().state_dict_metadata
        if _rng_key() in stored:
            state[_rng_key()] = torch.get_rng_state()
        dcp.load(state, checkpoint_id=directory)
    except (OSError, RuntimeError, CheckpointException) as cause:
        raise CheckpointError(f"can't read a trainer's state from {directory}: {_reason(cause)}") from cause
    stepper.updates = int(state["updates"])
    if _rng_key() in state:
        torch.set_rng_state(state[_rng_key()])


def _state(stepper: Stepper) -> dict[str, Any]:
    """Return the tensors that are saved and, as loading is in place, loaded: {kind.parameter: tensor}."""
    state: dict[str, Any] = {"updates": torch.tensor(stepper.updates)}
    for name, parameter in stepper.policy.model.named_parameters():
        state[f"model.{name}"] = parameter.detach()
        moments = stepper.optimizer.state[parameter]
        if not moments:  # AdamW makes them at its first update
            moments["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            moments["exp_avg"] = torch.zeros_like(parameter)
            moments["exp_avg_sq"] = torch.zeros_like(parameter)
        for key, value in moments.items():
            state[f"optimizer.{name}.{key}"] = value.detach()
    return state


def _rng_key() -> str:
    return f"rng.{dist.get_rank()}"


def _reason(cause: BaseException) -> str:
    if isinstance(cause, CheckpointException) and cause.failures:
        cause = next(iter(cause.failures.values()))[0]
    return str(cause).strip().splitlines()[0] if str(cause).strip() else type(cause).__name__

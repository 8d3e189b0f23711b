"""Copies what training needs to go on, writes the copy while training goes on, and reads it again at any number of ranks.

Sharded, with torch.distributed.checkpoint, in its form of safetensors files: unlike its usual one, that has no pickles.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from asyncrl import Exported
from asyncrl.errors import CheckpointError
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from asyncrl_fsdp.distributed import local
from asyncrl_fsdp.export import Exporter
from asyncrl_fsdp.step import Stepper

FILE_BYTES = 2**29
"""About the size of a rank's files. torch holds each in memory, two or three times, while it writes it."""
SLOWEST_RANK = timedelta(days=1)
"""For how long ranks that have written wait for one that writes; the controller says what it waits for, and sees a rank that dies."""
_FAILURES = (OSError, RuntimeError, ValueError, LookupError, SafetensorError, CheckpointException)
_MODEL = "model."


class Saver:
    """A rank's copy of its state, in host memory, and a process group of its own, through which ranks talk while others train.

    The copy is made by the first `capture` and kept: with AdamW it takes 12 bytes a parameter, over all ranks.
    """

    def __init__(self, stepper: Stepper, exporter: Exporter) -> None:
        self._stepper = stepper
        self._exporter = exporter
        self._group = dist.new_group(backend="gloo", timeout=SLOWEST_RANK)
        self._mesh = DeviceMesh.from_group(self._group, "cpu")
        self._copy: dict[str, Tensor] = {}

    def capture(self) -> None:
        """Copy model, optimizer, number of updates and random state as they are now."""
        for name, tensor in (_state(self._stepper) | {_rng_key(dist.get_rank()): torch.get_rng_state()}).items():
            if name not in self._copy:
                self._copy[name] = self._like(tensor)
            local(self._copy[name]).copy_(local(tensor))

    def save(self, directory: Path, model: Path) -> Exported:
        """Write the copy, sharded, and the weights in it as a Hugging Face directory; collective. Raises `CheckpointError`."""
        directory.mkdir(parents=True, exist_ok=True)
        writer = HuggingFaceStorageWriter(str(directory), fqn_to_index_mapping=_files(self._copy), save_distributed=True)
        try:
            dcp.save(self._copy, storage_writer=writer, process_group=self._group)
        except _FAILURES as cause:
            raise CheckpointError(f"can't write the trainer's state: {_reason(cause)}") from cause
        return self._exporter.export(model, self._parameters(), self._group)

    def _parameters(self) -> Iterator[tuple[str, Tensor]]:
        return ((name.removeprefix(_MODEL), tensor) for name, tensor in self._copy.items() if name.startswith(_MODEL))

    def _like(self, tensor: Tensor) -> Tensor:
        """Return room for a copy of this rank's part."""
        held = torch.empty(local(tensor).shape, dtype=tensor.dtype)
        if not isinstance(tensor, DTensor):
            return held
        return DTensor.from_local(
            held, self._mesh, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
        )


def load(stepper: Stepper, directory: Path) -> None:
    """Read what `save` wrote, whatever the number of ranks then; collective. Raises `CheckpointError`."""
    state, own_rng = _state(stepper), _rng_key(dist.get_rank())
    reader = HuggingFaceStorageReader(str(directory))
    try:
        if own_rng in reader.read_metadata().state_dict_metadata:
            state[own_rng] = torch.get_rng_state()
        dcp.load(state, storage_reader=reader)
    except _FAILURES as cause:
        raise CheckpointError(f"can't read a trainer's state from {directory}: {_reason(cause)}") from cause
    stepper.updates = int(state["updates"])
    if own_rng in state:
        torch.set_rng_state(state[own_rng])


def _state(stepper: Stepper) -> dict[str, Tensor]:
    """Return the tensors that are saved and, as loading is in place, loaded: {kind.parameter: tensor}."""
    state: dict[str, Tensor] = {"updates": torch.tensor(stepper.updates)}
    for name, parameter in stepper.policy.model.named_parameters():
        state[f"{_MODEL}{name}"] = parameter.detach()
        moments = stepper.optimizer.state[parameter]
        if not moments:  # AdamW makes them at its first update
            moments["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            moments["exp_avg"] = torch.zeros_like(parameter)
            moments["exp_avg_sq"] = torch.zeros_like(parameter)
        for key, value in moments.items():
            state[f"optimizer.{name}.{key}"] = value.detach()
    return state


def _files(state: Mapping[str, Tensor]) -> dict[str, int]:
    """Return the number of the file, from 1, into which each rank writes its part of a tensor: the same on every rank."""
    ranks, filled = dist.get_world_size(), 0
    files = {_rng_key(rank): 1 for rank in range(ranks)}
    for name, tensor in state.items():
        files.setdefault(name, filled // FILE_BYTES + 1)
        filled += tensor.nbytes // ranks
    return files


def _rng_key(rank: int) -> str:
    return f"rng.{rank}"


def _reason(cause: BaseException) -> str:
    if isinstance(cause, CheckpointException) and cause.failures:
        cause = next(iter(cause.failures.values()))[0]
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return str(cause).strip().splitlines()[0] if str(cause).strip() else type(cause).__name__

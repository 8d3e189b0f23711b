"""Process groups that bring weights from a trainer. Made beside torch's default group, which this never touches.

The stores are nested just as SGLang and `torch.distributed` nest them, so that one sender serves both kinds of engine. Every call
blocks, until its timeout at the latest: call it from a thread.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from asyncrl_torch.requests import BadRequest

BACKENDS = ("gloo", "nccl")


@dataclass(frozen=True, slots=True)
class GroupAddress:
    """Where and as whom to join. `rank` 0 is the sender, to which all others connect."""

    address: str
    port: int
    rank: int
    world_size: int
    name: str
    backend: str


class WeightGroups:
    """The groups this server has joined, by name."""

    def __init__(self, device: torch.device, timeout: float) -> None:
        self._device = device
        self._timeout = timedelta(seconds=timeout)
        self._groups: dict[str, Any] = {}
        # without these a broken NCCL collective would end the process in place of raising
        os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")

    def __contains__(self, name: str) -> bool:
        return name in self._groups

    def join(self, to: GroupAddress) -> None:
        """Join a group; returns when every member has. Raises `BadRequest` when it does not come about in time."""
        if to.backend not in BACKENDS:
            raise BadRequest(f"unknown backend {to.backend!r}; there are {', '.join(BACKENDS)}")
        if to.backend == "nccl" and self._device.type != "cuda":
            raise BadRequest("backend nccl needs an engine on cuda; use gloo")
        _free(self._groups.pop(to.name, None))  # of a trainer that has gone without a word
        try:
            store = dist.TCPStore(to.address, to.port, to.world_size, False, self._timeout)
            nested = dist.PrefixStore(f"{to.name}/", dist.PrefixStore(to.name, store))
            if to.backend == "gloo":
                group = dist.ProcessGroupGloo(dist.PrefixStore("cpu/", nested), to.rank, to.world_size, self._timeout)
            else:
                options = dist.ProcessGroupNCCL.Options()
                options._timeout = self._timeout
                group = dist.ProcessGroupNCCL(dist.PrefixStore("cuda/", nested), to.rank, to.world_size, options)
        except (RuntimeError, ValueError) as cause:
            raise BadRequest(f"weight group {to.name!r} did not come about: {_first_line(cause)}") from cause
        self._groups[to.name] = group

    def receive(
        self, name: str, shapes: Sequence[Sequence[int]], dtypes: Sequence[torch.dtype], *, packed: bool
    ) -> list[torch.Tensor]:
        """Receive tensors from rank 0, in order: one by one, or `packed` in one of bytes, of which they are then parts.

        Raises `BadRequest` when the sender fails or does not come in time; the group is then of no more use and is left.
        """
        group = self._groups.get(name)
        if group is None:
            raise BadRequest(f"this engine is in no weight group named {name!r}")
        device = self._device if not isinstance(group, dist.ProcessGroupGloo) else torch.device("cpu")
        if packed:
            whole, tensors = _packed(shapes, dtypes, device)
        else:
            tensors = [torch.empty(tuple(shape), dtype=dtype, device=device) for shape, dtype in zip(shapes, dtypes, strict=True)]
        options = dist.BroadcastOptions()
        options.rootRank = 0
        options.rootTensor = 0
        options.timeout = self._timeout
        try:
            works = [group.broadcast([tensor], options) for tensor in ([whole] if packed else tensors)]
            for work in works:
                work.wait(self._timeout)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        except RuntimeError as cause:
            if self._groups.get(name) is group:
                del self._groups[name]
            raise BadRequest(f"receiving weights from group {name!r} failed: {_first_line(cause)}") from cause
        return tensors

    def leave(self, name: str) -> None:
        """Leave a group, and end a `receive` that is stuck in it. Raises `BadRequest` for an unknown one."""
        group = self._groups.pop(name, None)
        if group is None:
            raise BadRequest(f"this engine is in no weight group named {name!r}")
        _free(group)


def _packed(
    shapes: Sequence[Sequence[int]], dtypes: Sequence[torch.dtype], device: torch.device
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return uint8[bytes of all] and its parts: tensors of these shapes, contiguous, one behind the other."""
    sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in zip(shapes, dtypes, strict=True)]
    whole = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
    try:
        parts = zip(whole.split(sizes), shapes, dtypes, strict=True)
        return whole, [part.view(dtype).view(tuple(shape)) for part, shape, dtype in parts]
    except RuntimeError as cause:
        raise BadRequest(f"these weights can't be packed, one would begin between two numbers of its dtype: {cause}") from cause


def _free(group: Any) -> None:
    """End whatever is stuck in a group."""
    if group is not None:
        with suppress(RuntimeError):
            group.abort()


def _first_line(cause: BaseException) -> str:
    return str(cause).strip().split("\n", 1)[0]

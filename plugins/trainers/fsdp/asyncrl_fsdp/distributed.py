"""The trainer's own process group and FSDP2, applied to the model from outside; one way for 1 rank or many."""

from __future__ import annotations

import socket
from datetime import timedelta

import torch
import torch.distributed as dist
from asyncrl import ResourceError, TrainerError, TrainerPlace
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from asyncrl_fsdp.policy import Policy, blocks


def open_device(place: TrainerPlace) -> torch.device:
    """Return the rank's device. Raises `ResourceError` when it is not there."""
    if place.device == "cpu":
        return torch.device("cpu")
    visible = torch.cuda.device_count()
    if not visible:
        raise ResourceError(f"trainer rank {place.rank} sees no GPU", origin="device", remedy='write device = "cpu"')
    device = torch.device("cuda", place.local_rank if place.local_rank < visible else 0)
    torch.cuda.set_device(device)
    return device


def join_ranks(place: TrainerPlace, device: torch.device) -> None:
    """Join the default process group. Raises `TrainerError` when not every rank is there within `place.timeout` seconds."""
    where = f"{place.master_address}:{place.master_port}"
    timeout = timedelta(seconds=place.timeout)
    try:
        dist.init_process_group(
            # Gloo beside NCCL carries what lives in host memory.
            "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
            store=open_store(place.master_address, place.master_port, place.rank, place.world_size, timeout),
            rank=place.rank,
            world_size=place.world_size,
            timeout=timeout,
        )
    except (RuntimeError, ValueError, OSError) as cause:
        raise TrainerError(
            f"trainer rank {place.rank} of {place.world_size} could not join the others at {where} in {place.timeout:.0f} s: {cause}"
        ) from cause


def open_store(address: str, port: int, rank: int, world_size: int, timeout: timedelta) -> dist.TCPStore:
    """Return the store at which ranks meet. Rank 0 listens at this address alone, where torch by itself would at every one.

    Raises:
        OSError, RuntimeError: the port can't be had, or not every rank is there within `timeout`.
    """
    if rank:
        return dist.TCPStore(address, port, world_size, False, timeout)
    listening = socket.create_server((address, port))
    return dist.TCPStore(address, port, world_size, True, timeout, master_listen_fd=listening.detach())


def shard(policy: Policy, device: torch.device, *, bf16: bool) -> None:
    """Shard every block, then the rest, over all ranks; master weights and gradient sums stay in float32."""
    mesh = DeviceMesh(device.type, list(range(dist.get_world_size())))
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if bf16 else None, reduce_dtype=torch.float32)
    for block in blocks(policy.model):
        fully_shard(block, mesh=mesh, mp_policy=precision)
    fully_shard(policy, mesh=mesh, mp_policy=precision)


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor, sharing its memory."""
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """Return the whole of a tensor; collective when it is sharded."""
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

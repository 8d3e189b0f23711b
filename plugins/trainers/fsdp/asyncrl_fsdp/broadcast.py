"""Sends weights to the engines over a process group of its own, beside the trainer's. Nothing here can wait for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from asyncrl import WeightBucket, WeightGroup, WeightManifest
from asyncrl.errors import PublicationError
from asyncrl.training.digest import digest_lines, tensor_line
from torch import Tensor, nn

from asyncrl_fsdp.distributed import whole, whole_parameters


def manifest(model: nn.Module, dtype: torch.dtype, bucket_bytes: int) -> WeightManifest:
    """Return what a broadcast will send, in buckets of at most `bucket_bytes` (a larger tensor has its own); collective."""
    lines: list[str] = []
    buckets: list[list[tuple[str, tuple[int, ...]]]] = []
    filled = total = 0
    for name, tensor in whole_parameters(model, dtype):
        lines.append(tensor_line(name, tensor))
        size = tensor.numel() * dtype.itemsize
        if not buckets or filled + size > bucket_bytes:
            buckets.append([])
            filled = 0
        buckets[-1].append((name, tuple(tensor.shape)))
        filled += size
        total += size
    kind = str(dtype).removeprefix("torch.")
    return WeightManifest(
        tuple(WeightBucket(tuple(n for n, _ in own), (kind,) * len(own), tuple(s for _, s in own)) for own in buckets),
        total,
        digest_lines(lines),
    )


def gather_bucket(model: nn.Module, bucket: WeightBucket, dtype: torch.dtype) -> list[Tensor]:
    """Return the bucket's tensors whole, in its order; collective."""
    parameters = dict(model.named_parameters())
    return [whole(parameters[name]).to(dtype).contiguous() for name in bucket.names]


class WeightSender:
    """Rank 0's end of the weight group. `leave` may be called from any thread and ends a stuck `join` or `send`."""

    def __init__(self) -> None:
        self._group: WeightGroup | None = None
        self._backend: dist.Backend | None = None
        self._store: dist.TCPStore | None = None
        self._left = threading.Event()
        self._lock = threading.Lock()

    def join(self, group: WeightGroup, device: torch.device) -> None:
        """Open the group and wait for every engine. Raises `PublicationError` after `group.timeout` seconds or when told to leave."""
        if self._backend is not None:
            self.leave()
        left = self._left = threading.Event()
        outcome: list[tuple[dist.TCPStore, dist.Backend] | BaseException] = []
        # Joining blocks inside torch, for at most the timeout; in a thread of its own, `leave` needn't wait for it.
        thread = threading.Thread(target=_join, args=(group, device, outcome), name=f"join {group.name}", daemon=True)
        thread.start()
        what = f"weight group {group.name!r} at {group.address}:{group.port}"
        _wait(lambda: not thread.is_alive(), left, 2 * group.timeout + 5, what)
        if isinstance(outcome[0], BaseException):
            raise PublicationError(
                f"{what}: not all of {group.world_size - 1} engines joined within {group.timeout:.0f} s: {outcome[0]}"
            ) from outcome[0]
        with self._lock:
            self._store, self._backend = outcome[0]
            self._group = group

    def send(self, tensors: list[Tensor]) -> int:
        """Broadcast tensors one by one, in order; return the bytes sent. Raises `PublicationError`, never hangs."""
        with self._lock:
            group, backend, left = self._group, self._backend, self._left
        if group is None or backend is None:
            raise PublicationError("no weight group was joined")
        what = f"weight group {group.name!r}: broadcast"
        options = dist.BroadcastOptions()
        options.rootRank = 0
        try:
            works = [backend.broadcast([tensor], options) for tensor in tensors]
            for work in works:
                _wait(work.is_completed, left, group.timeout, what)
            for work in works:
                work.wait()
        except RuntimeError as cause:
            raise PublicationError(f"{what} failed: {str(cause).splitlines()[0]}") from cause
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def leave(self) -> None:
        """Leave the group and end what is stuck in it. Does nothing without a group."""
        self._left.set()
        with self._lock:
            backend, store = self._backend, self._store
            self._backend = self._store = self._group = None
        if backend is not None:
            # A backend is only freed when what is stuck in it has timed out: not in a thread that others wait for.
            threading.Thread(target=_free, args=([backend, store],), name="leave weight group", daemon=True).start()


def _join(group: WeightGroup, device: torch.device, outcome: list[tuple[dist.TCPStore, dist.Backend] | BaseException]) -> None:
    timeout = timedelta(seconds=group.timeout)
    try:
        store = dist.TCPStore(group.address, group.port, group.world_size, True, timeout, multi_tenant=True)
        # The prefixes are those of torch's `_new_process_group_helper`, through which engines join under the group's name.
        kind = "cuda" if group.backend == "nccl" else "cpu"
        prefixed = dist.PrefixStore(f"{kind}/", dist.PrefixStore(f"{group.name}/", dist.PrefixStore(group.name, store)))
        if group.backend == "nccl":
            torch.cuda.set_device(device)
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = timeout
            backend = dist.ProcessGroupNCCL(prefixed, 0, group.world_size, options)
        else:
            backend = dist.ProcessGroupGloo(prefixed, 0, group.world_size, timeout)
        outcome.append((store, backend))
    except Exception as cause:
        outcome.append(cause)


def _wait(done: Callable[[], bool], left: threading.Event, timeout: float, what: str) -> None:
    """Wait until `done()`, looking often at first. Raises `PublicationError` past `timeout` seconds or when `left` is set."""
    deadline, pause = time.monotonic() + timeout, 2e-5
    while not done():
        if left.wait(pause):
            raise PublicationError(f"{what} was given up")
        if time.monotonic() > deadline:
            raise PublicationError(f"{what} did not end within {timeout:.0f} s")
        pause = min(pause * 1.5, 0.01)


def _free(held: list[object]) -> None:
    backend = held[0]
    with suppress(RuntimeError):
        backend.abort()
    held.clear()

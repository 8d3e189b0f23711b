"""Sends weights to the engines over a process group of its own, beside the trainer's. Nothing here can wait for ever."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from asyncrl import WeightBucket, WeightGroup, WeightManifest
from asyncrl.errors import PublicationError
from asyncrl.training.digest import digest_lines, tensor_line
from torch import Tensor

from asyncrl_fsdp.distributed import open_store
from asyncrl_fsdp.weights import Weights

BUCKET_MB = {"cuda": 512, "cpu": 24}
"""By device. glibc serves up to 32 MB from memory that it keeps, anything larger from new pages, which cost more than they carry."""


def manifest(weights: Weights, dtype: torch.dtype, bucket_bytes: int) -> WeightManifest:
    """Return what a broadcast will send, in buckets of at most `bucket_bytes` (a larger tensor has its own); collective."""
    lines: list[str] = []
    buckets: list[list[tuple[str, tuple[int, ...]]]] = []
    filled = total = 0
    for name, tensor in weights.whole(dtype):
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


def packed(bucket: WeightBucket, tensors: Iterator[Tensor]) -> Tensor:
    """Return a bucket's tensors, which all have one dtype, as uint8[bytes]: one behind the other, as SGLang's `flattened_bucket` has them.

    Beside what it returns, one tensor at a time is held.
    """
    if len(bucket.names) == 1:
        return next(tensors).view(-1).view(torch.uint8)
    whole, filled = torch.empty(0), 0
    for tensor in tensors:
        if not filled:
            whole = tensor.new_empty(sum(math.prod(shape) for shape in bucket.shapes))
        whole[filled : filled + tensor.numel()] = tensor.view(-1)
        filled += tensor.numel()
        del tensor  # before the next is gathered
    return whole.view(torch.uint8)


@dataclass
class _Joined:
    """A group that stands, and what is under way in it."""

    group: WeightGroup
    store: dist.TCPStore | None
    backend: Any
    works: list[dist.Work] = field(default_factory=list)
    sending: bool = False


class WeightSender:
    """Rank 0's end of the weight group. `leave` may be called from any thread and ends a stuck `join` or `send`."""

    def __init__(self) -> None:
        self._joined: _Joined | None = None
        self._left = threading.Event()
        self._lock = threading.Lock()

    def join(self, group: WeightGroup, device: torch.device) -> None:
        """Open the group and wait for every engine. Raises `PublicationError` after `group.timeout` seconds or when told to leave."""
        self.leave()
        left = self._left = threading.Event()
        outcome: list[_Joined | Exception] = []
        # Joining blocks inside torch, for at most the timeout; in a thread of its own, `leave` needn't wait for it.
        thread = threading.Thread(target=_join, args=(group, device, outcome), name=f"join {group.name}", daemon=True)
        thread.start()
        what = f"weight group {group.name!r} at {group.address}:{group.port}"
        _wait(lambda: bool(outcome), left, 2 * group.timeout + 5, what)
        made = outcome[0]
        if isinstance(made, Exception):
            raise PublicationError(
                f"{what} of this trainer and {group.world_size - 1} engines did not come about within {group.timeout:.0f} s: "
                f"{_first_line(made)}"
            ) from made
        with self._lock:
            self._joined = made

    def send(self, bucket: WeightBucket, tensors: Iterator[Tensor]) -> int:
        """Broadcast a bucket's tensors, in the group's form; return the bytes sent. Raises `PublicationError`, never hangs.

        All `tensors` are taken before anything can fail: other ranks help to gather them.
        """
        joined = self._joined
        packs = joined is not None and joined.group.packed and bucket.can_be_packed
        sent = [packed(bucket, tensors)] if packs else list(tensors)
        with self._lock:
            joined, left = self._joined, self._left
            if joined is None:
                raise PublicationError("no weight group was joined")
            joined.sending = True
        what = f"weight group {joined.group.name!r}: broadcast"
        options = dist.BroadcastOptions()
        options.rootRank = 0
        try:
            for tensor in sent:
                joined.works.append(joined.backend.broadcast([tensor], options))
            for work in joined.works:
                _wait(work.is_completed, left, joined.group.timeout, what)
                work.wait()
            joined.works.clear()
        except RuntimeError as cause:
            raise PublicationError(f"{what} failed: {_first_line(cause)}") from cause
        finally:
            joined.sending = False
        return sum(tensor.nbytes for tensor in sent)

    def leave(self) -> None:
        """Leave the group and end what is stuck in it. Does nothing without a group."""
        self._left.set()
        with self._lock:
            joined, self._joined = self._joined, None
        if joined is None:
            return
        with suppress(RuntimeError):
            joined.backend.abort()  # ends what NCCL is stuck in; gloo's ends at its timeout
        if _idle(joined):
            _close(joined)
        else:
            threading.Thread(target=_close_when_idle, args=(joined,), name="close weight group", daemon=True).start()


def _join(group: WeightGroup, device: torch.device, outcome: list[_Joined | Exception]) -> None:
    timeout = timedelta(seconds=group.timeout)
    try:
        store = open_store(group.address, group.port, 0, group.world_size, timeout)
        # The prefixes are those of torch's `_new_process_group_helper`, through which engines join under the group's name.
        kind = "cuda" if group.backend == "nccl" else "cpu"
        prefixed = dist.PrefixStore(f"{kind}/", dist.PrefixStore(f"{group.name}/", dist.PrefixStore(group.name, store)))
        if group.backend == "nccl":
            torch.cuda.set_device(device)
            options = dist.ProcessGroupNCCL.Options()
            # Long after our own deadline: NCCL's watchdog would end the whole process.
            options._timeout = 2 * timeout + timedelta(seconds=60)
            backend = dist.ProcessGroupNCCL(prefixed, 0, group.world_size, options)
        else:
            backend = dist.ProcessGroupGloo(prefixed, 0, group.world_size, timeout)
        outcome.append(_Joined(group, store, backend))
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


def _idle(joined: _Joined) -> bool:
    return not joined.sending and all(work.is_completed() for work in joined.works)


def _close_when_idle(joined: _Joined) -> None:
    # Freeing a backend waits for what is stuck in it with the interpreter locked, which would stop the whole process.
    while not _idle(joined):
        time.sleep(0.05)
    _close(joined)


def _close(joined: _Joined) -> None:
    joined.works.clear()
    joined.backend = joined.store = None


def _first_line(cause: BaseException) -> str:
    return (str(cause).strip() or type(cause).__name__).splitlines()[0]

"""An engine's end of a weight group: `python weight_receiver.py MODE PORT NAME OUT`; the buckets come as JSON on stdin.

It joins as SGLang does (`init_custom_process_group`), through torch's private helper and without a default group. MODE is `receive` (and
write the digest of what came to OUT), `packed` (likewise, each bucket as one tensor, as SGLang's `flattened_bucket`), `stall` (join, then
receive nothing) or `die` (join, then vanish).
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from asyncrl.training.digest import weights_digest
from torch.distributed.distributed_c10d import _new_process_group_helper, _world
from torch.distributed.rendezvous import rendezvous


def main(mode: str, port: str, name: str, out: str) -> None:
    buckets = json.load(sys.stdin)
    timeout = timedelta(seconds=60)
    store, rank, size = next(rendezvous(f"tcp://127.0.0.1:{port}", 1, 2, timeout=timeout))
    store.set_timeout(timeout)
    group, _ = _new_process_group_helper(
        size, rank, [], "gloo", dist.PrefixStore(name, store), group_name=name, backend_options=None, timeout=timeout
    )
    _world.pg_group_ranks[group] = {index: index for index in range(size)}
    Path(out).with_suffix(".joined").touch()
    if mode == "die":
        os._exit(0)
    if mode == "stall":
        time.sleep(120)
        return
    received = []
    for bucket in buckets:
        tensors = [torch.empty(shape, dtype=getattr(torch, dtype)) for _, dtype, shape in bucket]
        if mode == "packed":
            whole = torch.empty(sum(tensor.nbytes for tensor in tensors), dtype=torch.uint8)
            dist.broadcast(whole, src=0, group=group)
            parts = whole.split([tensor.nbytes for tensor in tensors])
            tensors = [part.view(like.dtype).view(like.shape) for part, like in zip(parts, tensors, strict=True)]
        else:
            for tensor in tensors:
                dist.broadcast(tensor, src=0, group=group)
        received += [(name, tensor) for (name, _, _), tensor in zip(bucket, tensors, strict=True)]
    Path(out).write_text(weights_digest(received))


if __name__ == "__main__":
    main(*sys.argv[1:])

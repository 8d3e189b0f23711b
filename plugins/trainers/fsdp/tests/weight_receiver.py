"""An engine's end of a weight group: `python weight_receiver.py MODE PORT NAME OUT`; tensors' shapes come as JSON on stdin.

It joins as SGLang does (`init_custom_process_group`), through torch's private helper and without a default group. MODE is `receive` (and
write the digest of what came to OUT), `stall` (join, then receive nothing) or `die` (join, then vanish).
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
    named = json.load(sys.stdin)
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
    for tensor_name, dtype, shape in named:
        tensor = torch.empty(shape, dtype=getattr(torch, dtype))
        dist.broadcast(tensor, src=0, group=group)
        received.append((tensor_name, tensor))
    Path(out).write_text(weights_digest(received))


if __name__ == "__main__":
    main(*sys.argv[1:])

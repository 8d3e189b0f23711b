"""Weights by broadcast: they arrive whole and in order, and no peer can make the trainer wait past its deadline."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from asyncrl import TrainingBatch, WeightBucket, WeightGroup, WeightManifest
from asyncrl.errors import PublicationError
from asyncrl.training.publication import free_port
from asyncrl_fsdp import FsdpTrainer, broadcast
from hypothesis import given
from hypothesis import strategies as st

DTYPES = [torch.float32, torch.bfloat16]
Open = Callable[..., FsdpTrainer]


class Peer:
    """A receiving process; see `weight_receiver.py`."""

    def __init__(self, stack: ExitStack, directory: Path, mode: str, manifest: WeightManifest, timeout: float) -> None:
        port = free_port("127.0.0.1")
        self.group = WeightGroup("weights", "127.0.0.1", port, 2, "gloo", timeout, packed=mode == "packed")
        self.out = directory / f"{mode}-{self.group.port}"
        script = Path(__file__).with_name("weight_receiver.py")
        self.process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, str(script), mode, str(self.group.port), "weights", str(self.out)],
                stdin=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                text=True,
            )
        )
        stack.callback(self.process.kill)
        buckets = [list(zip(bucket.names, bucket.dtypes, bucket.shapes, strict=True)) for bucket in manifest.buckets]
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(buckets))
        self.process.stdin.close()


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Callable[..., Peer]]:
    with ExitStack() as stack:
        yield lambda mode, manifest, timeout=60.0: Peer(stack, tmp_path, mode, manifest, timeout)


def bound(trainer: FsdpTrainer, act: Callable[[], object], expected: str) -> None:
    """Run `act`, which must raise a `PublicationError`; and the trainer must still be usable."""
    with pytest.raises(PublicationError, match=expected):
        act()
    trainer.leave_weight_group()
    trainer.weight_manifest()


@pytest.mark.parametrize("mode", ["receive", "packed"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_arrive_with_the_digest(
    open_trainer: Open, make_batch: Callable[..., TrainingBatch], peer: Callable[..., Peer], dtype: str, mode: str
) -> None:
    trainer = open_trainer(publish_dtype=dtype)
    trainer.train_batch(make_batch())
    before = dist.group.WORLD
    manifest = trainer.weight_manifest()
    engine = peer(mode, manifest)
    trainer.join_weight_group(engine.group)
    sent = [trainer.broadcast_bucket(index) for index in range(len(manifest.buckets))]
    assert sum(sent) == manifest.num_bytes
    assert engine.process.wait(60) == 0
    assert engine.out.read_text() == manifest.digest
    trainer.leave_weight_group()
    assert dist.group.WORLD is before
    trainer.train_batch(make_batch())


def test_buckets_hold_every_tensor_once_and_no_more_than_their_size(open_trainer: Open) -> None:
    trainer = open_trainer()._trainer
    weights, model = trainer._weights, trainer._model
    small = broadcast.manifest(weights, torch.float32, 20_000)
    names = [name for bucket in small.buckets for name in bucket.names]
    assert names == [name for name, _ in model.named_parameters()]
    sizes = [sum(4 * int(torch.Size(shape).numel()) for shape in bucket.shapes) for bucket in small.buckets]
    assert all(size <= 20_000 or len(bucket.names) == 1 for size, bucket in zip(sizes, small.buckets, strict=True))
    assert sum(sizes) == small.num_bytes
    assert small.digest == broadcast.manifest(weights, torch.float32, 2**30).digest


def test_two_ranks_send_what_one_would(
    open_trainer: Open, run_ranks: Callable[..., list[Any]], peer: Callable[..., Peer]
) -> None:
    """Sharded tensors are gathered and packed one by one, and a rank 0 that can't send leaves no other rank waiting for it."""
    manifest = open_trainer().weight_manifest()
    engine = peer("packed", manifest)
    actions = [("broadcast_all", (engine.group, joins)) for joins in (False, True)]
    ((_, *digests),) = run_ranks(2, [{"options": {}, "actions": actions}])
    assert digests == [manifest.digest] * 2
    assert engine.process.wait(60) == 0
    assert engine.out.read_text() == manifest.digest


@given(shapes=st.lists(st.lists(st.integers(0, 5), max_size=3).map(tuple), min_size=1, max_size=8), dtype=st.sampled_from(DTYPES))
def test_a_packed_bucket_is_its_tensors_bytes_one_behind_the_other(shapes: list[tuple[int, ...]], dtype: torch.dtype) -> None:
    """And each tensor is let go before the next one is gathered."""
    kept = [torch.randn(shape).to(dtype) for shape in shapes]
    alive: list[weakref.ref[torch.Tensor]] = []

    def gathered() -> Iterator[torch.Tensor]:
        for tensor in kept:
            assert not any(one() is not None for one in alive)
            copy = tensor.clone()
            alive.append(weakref.ref(copy))
            yield copy
            del copy

    names = tuple(map(str, range(len(shapes))))
    bucket = WeightBucket(names, (str(dtype).removeprefix("torch."),) * len(shapes), tuple(shapes))
    sent = broadcast.packed(bucket, gathered())
    assert sent.dtype == torch.uint8 and sent.dim() == 1
    assert sent.tolist() == [byte for tensor in kept for byte in tensor.view(-1).view(torch.uint8).tolist()]


def test_engine_that_never_joins_is_an_error_within_the_deadline(open_trainer: Open) -> None:
    trainer = open_trainer()
    group = WeightGroup("weights", "127.0.0.1", free_port("127.0.0.1"), 2, "gloo", 1.5)
    bound(trainer, lambda: trainer.join_weight_group(group), "did not come about within 2 s")


def test_engine_that_never_receives_is_an_error_within_the_deadline(open_trainer: Open, peer: Callable[..., Peer]) -> None:
    """Field report 17."""
    trainer = open_trainer()
    engine = peer("stall", trainer.weight_manifest())
    trainer.join_weight_group(engine.group)
    # Joining had to wait for the other process to start; sending has no such excuse.
    joined = trainer._trainer._sender._joined
    joined.group = dataclasses.replace(joined.group, timeout=1.0)
    bound(trainer, lambda: send_until_stuck(trainer), "did not end within 1 s")


def test_engine_that_dies_is_an_error(open_trainer: Open, peer: Callable[..., Peer]) -> None:
    trainer = open_trainer()
    engine = peer("die", trainer.weight_manifest())
    trainer.join_weight_group(engine.group)
    assert engine.process.wait(60) == 0
    bound(trainer, lambda: send_until_stuck(trainer), "broadcast failed")


def test_leaving_ends_a_stuck_send(open_trainer: Open, peer: Callable[..., Peer]) -> None:
    """Field report 17: the engines' side failed over HTTP while the trainer's waits in the collective."""
    trainer = open_trainer()
    engine = peer("stall", trainer.weight_manifest())
    trainer.join_weight_group(engine.group)
    leave = threading.Timer(0.5, trainer.leave_weight_group)
    leave.start()
    bound(trainer, lambda: send_until_stuck(trainer), "was given up|no weight group")
    leave.join()


def test_leaving_ends_a_stuck_join(open_trainer: Open) -> None:
    trainer = open_trainer()
    group = WeightGroup("weights", "127.0.0.1", free_port("127.0.0.1"), 2, "gloo", 20.0)
    ended = threading.Event()

    def keep_leaving() -> None:
        while not ended.wait(0.1):
            trainer.leave_weight_group()

    thread = threading.Thread(target=keep_leaving)
    thread.start()
    try:
        bound(trainer, lambda: trainer.join_weight_group(group), "was given up")
    finally:
        ended.set()
        thread.join()


def test_sending_without_a_group_is_an_error(open_trainer: Open) -> None:
    trainer = open_trainer()
    trainer.weight_manifest()
    bound(trainer, lambda: trainer.broadcast_bucket(0), "no weight group was joined")


def send_until_stuck(trainer: FsdpTrainer) -> None:
    """Small sends end in the socket's buffer; go on until one does not."""
    for _ in range(1000):
        trainer.broadcast_bucket(0)

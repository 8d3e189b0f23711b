"""A trainer's side of publications that holds any model, with the real export, digest and broadcast."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import torch
from asyncrl import WeightGroup, WeightManifest
from asyncrl.training.digest import weights_digest
from asyncrl.training.interfaces import Exported
from asyncrl_fsdp.broadcast import WeightSender, manifest
from asyncrl_fsdp.weights import Weights

BUCKET_BYTES = 500_000  # several buckets
FLOAT = torch.float32
WAYS = [(method, mode) for method in ("disk", "broadcast") for mode in ("retract", "in_place")]


class Source:
    """Publishes `model`; satisfies `TrainerSide`."""

    def __init__(self, model: Any, bucket_bytes: int = BUCKET_BYTES) -> None:
        self.model = model
        self.digest = weights_digest(model.named_parameters())
        self._sender = WeightSender()
        self._weights = Weights(model, Path(model.name_or_path))
        self._manifest = manifest(self._weights, FLOAT, bucket_bytes)

    async def export(self, directory: Path) -> Exported:
        await asyncio.to_thread(self.model.save_pretrained, directory)
        return Exported(directory, self._manifest.num_bytes, self.digest)

    async def manifest(self) -> WeightManifest:
        return self._manifest

    async def join(self, group: WeightGroup) -> None:
        self.group = group
        await asyncio.to_thread(self._sender.join, group, torch.device("cpu"))

    async def broadcast(self, index: int) -> int:
        bucket = self._manifest.buckets[index]
        return await asyncio.to_thread(self._sender.send, bucket, self._weights.some(bucket.names, FLOAT))

    async def leave(self) -> None:
        await asyncio.to_thread(self._sender.leave)

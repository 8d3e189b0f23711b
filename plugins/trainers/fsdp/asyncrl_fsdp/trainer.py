"""One open rank: model, optimizer, and everything that is asked of them. Imports torch; made when the trainer is opened."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from asyncrl import Exported, StepReport, TrainerFacts, TrainerPlace, TrainingBatch, WeightGroup, WeightManifest
from asyncrl.errors import PublicationError

from asyncrl_fsdp import broadcast, checkpoint
from asyncrl_fsdp.distributed import join_ranks, open_device, shard
from asyncrl_fsdp.export import Exporter
from asyncrl_fsdp.options import FsdpOptions
from asyncrl_fsdp.policy import load_policy
from asyncrl_fsdp.step import Stepper
from asyncrl_fsdp.weights import Weights


class Trainer:
    """Opens a rank; see the trainer hooks in `asyncrl.hookspecs` for what each method promises."""

    def __init__(self, options: FsdpOptions, place: TrainerPlace) -> None:
        torch.set_num_threads(options.threads)
        torch.manual_seed(place.seed)
        self._options = options
        self._place = place
        self._device = open_device(place)
        self._dtype = getattr(torch, place.publish_dtype)
        policy = load_policy(place.model, activation_checkpointing=options.activation_checkpointing)
        self._model = policy.model
        self._weights = Weights(self._model, place.model)
        self._exporter = Exporter(self._weights, place.model, self._dtype)
        join_ranks(place, self._device)
        bf16 = options.dtype == "bf16"
        # One rank in float32 has nothing to shard, and FSDP2's hooks cost a tiny model 5 to 20 % of its step.
        if place.world_size > 1 or bf16 or options.shard == "always":
            shard(policy, self._device, bf16=bf16)
        else:
            policy.to(self._device)
        self._stepper = Stepper(policy, options, self._device, steps=place.steps)
        self._saver = checkpoint.Saver(self._stepper, self._exporter)
        self._sender = broadcast.WeightSender()
        self._manifest: WeightManifest | None = None

    def facts(self) -> TrainerFacts:
        manifest = self.weight_manifest()
        return TrainerFacts(
            num_parameters=sum(parameter.numel() for parameter in self._model.parameters()),
            model_bytes=manifest.num_bytes,
            vocab_size=self._model.get_input_embeddings().num_embeddings,
            digest=manifest.digest,
        )

    def train(self, batch: TrainingBatch) -> StepReport:
        return self._stepper.step(batch)

    def export(self, directory: Path) -> Exported:
        return self._exporter.export(directory)

    def weight_manifest(self) -> WeightManifest:
        bucket_mb = self._options.bucket_mb or broadcast.BUCKET_MB[self._device.type]
        self._manifest = broadcast.manifest(self._weights, self._dtype, bucket_mb * 2**20)
        return self._manifest

    def join_weight_group(self, group: WeightGroup) -> None:
        self._sender.join(group, self._device)

    def broadcast_bucket(self, index: int) -> int:
        if self._manifest is None:
            raise PublicationError("a bucket was to be sent before the manifest was asked for")
        bucket = self._manifest.buckets[index]
        tensors = self._weights.some(bucket.names, self._dtype)
        if self._place.rank != 0:
            for _ in tensors:  # gathering takes every rank
                pass
            return 0
        return self._sender.send(bucket, tensors)

    def leave_weight_group(self) -> None:
        self._sender.leave()

    def capture(self) -> None:
        self._saver.capture()

    def save(self, directory: Path, model: Path) -> Exported:
        return self._saver.save(directory, model)

    def load(self, directory: Path) -> None:
        checkpoint.load(self._stepper, directory)

    def close(self) -> None:
        self._sender.leave()
        if dist.is_initialized():
            dist.destroy_process_group()

"""A policy gradient in plain PyTorch on one device: the loss of a token is -min(w, cap) A log p, w its probability now / when generated."""

from __future__ import annotations

import copy
import json
import math
import shutil
import socket
import threading
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from asyncrl import (
    Exported,
    Gauge,
    MetricSet,
    OptionError,
    Plugin,
    PluginOptions,
    RunFacts,
    StepReport,
    TrainerError,
    TrainerFacts,
    TrainerPlace,
    TrainingBatch,
    WeightBucket,
    WeightGroup,
    WeightManifest,
    hookimpl,
)
from asyncrl.errors import PublicationError
from asyncrl.training.digest import weights_digest
from asyncrl.training.snapshots import mark_complete, mark_incomplete
from pydantic import Field

if TYPE_CHECKING:
    import torch

STATE = "trainer.pt"


class TemplateNameOptions(PluginOptions):
    learning_rate: float = Field(1e-6, ge=0.0, description="Learning rate of AdamW.")
    max_grad_norm: float = Field(1.0, gt=0.0, description="Gradients are scaled down to this L2 norm.")
    weight_cap: float = Field(2.0, gt=0.0, description="Largest weight of a token by its probability now / when generated.")
    samples_at_once: int = Field(16, ge=1, description="Samples that go through the model together; more need more memory.")
    threads: int = Field(1, ge=1, description="CPU threads of torch.")


class TemplateNameMetrics(MetricSet):
    loss = Gauge("Loss of the step, mean over generated tokens", unit="nats")
    grad_norm = Gauge("L2 norm of the gradient before it was scaled down", unit="norm")


class TemplateName(Plugin):
    """Imports torch when it is opened, so that whoever only lists or checks plugins needs none."""

    hook_api = 1
    Options = TemplateNameOptions
    Metrics = TemplateNameMetrics
    options: TemplateNameOptions

    def __init__(self, options: TemplateNameOptions, run: RunFacts) -> None:
        super().__init__(options, run)
        self._model: Any = None
        self._optimizer: Any = None
        self._captured: Any = None
        self._group: Any = None
        self._groups_left: list[Any] = []
        self._left = threading.Event()

    @hookimpl
    def check_run(self, run: RunFacts) -> None:
        if run.trainer_ranks != 1:
            raise OptionError("this trainer has one rank", origin="trainer_ranks", remedy="write trainer_ranks = 1")
        if run.group_size < 2:
            raise OptionError("the baseline is the group's mean reward", origin="group_size", remedy="write at least 2")
        if run.temperature <= 0 or run.top_p < 1 or run.top_k > 0:
            message = "this trainer computes probabilities under the model's whole distribution"
            raise OptionError(message, origin="temperature, top_p, top_k", remedy="temperature > 0, top_p = 1, top_k = -1")

    @hookimpl
    def trainer_open(self, place: TrainerPlace) -> TrainerFacts:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(self.options.threads)
        torch.manual_seed(place.seed)
        self._source, self._dtype = place.model, getattr(torch, place.publish_dtype)
        model: Any = AutoModelForCausalLM.from_pretrained(
            place.model, dtype=torch.float32, trust_remote_code=False, use_safetensors=True
        )
        self._model = model.to(place.device).eval()  # no dropout: it would change the probabilities
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=self.options.learning_rate, weight_decay=0.0)
        manifest = self.weight_manifest()
        parameters = sum(parameter.numel() for parameter in self._model.parameters())
        vocabulary = self._model.get_input_embeddings().num_embeddings
        return TrainerFacts(parameters, manifest.num_bytes, vocabulary, manifest.digest)

    # Training ---------------------------------------------------------------------------------------------------------------

    @hookimpl
    def train_batch(self, batch: TrainingBatch) -> StepReport:
        import torch

        began = time.perf_counter()
        sizes = np.bincount(batch.groups)
        advantages = batch.rewards - (np.bincount(batch.groups, weights=batch.rewards) / sizes)[batch.groups]
        order = np.argsort(np.diff(batch.starts), kind="stable")  # of like length, so that little is padded
        parts = [
            order[start : start + self.options.samples_at_once] for start in range(0, len(order), self.options.samples_at_once)
        ]
        loss = sum(self._backward(batch, rows, advantages) for rows in parts)
        parameters = list(self._model.parameters())
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, self.options.max_grad_norm))
        if not math.isfinite(norm):
            self._optimizer.zero_grad()
            raise TrainerError(f"step {batch.step}: the gradient's norm is {norm}; the weights were not updated")
        before = [parameter.detach().clone() for parameter in parameters]
        self._optimizer.step()
        self._optimizer.zero_grad()
        changes = [float((now.detach() - old).norm()) for now, old in zip(parameters, before, strict=True)]
        return StepReport(
            metrics={"loss": loss, "grad_norm": norm},
            update_norm=math.hypot(*changes),
            num_tokens=len(batch.token_ids),
            busy_seconds=time.perf_counter() - began,
        )

    def _backward(self, batch: TrainingBatch, rows: Any, advantages: Any) -> float:
        """Add the gradient of some samples; return their part of the loss."""
        import torch

        width = int(np.diff(batch.starts)[rows].max())
        token_ids = np.zeros((len(rows), width), np.int64)  # padded on the right, where no token before it looks
        trained = np.zeros((len(rows), width), np.bool_)
        then = np.zeros((len(rows), width), np.float32)
        for index, row in enumerate(rows):
            piece = slice(batch.starts[row], batch.starts[row + 1])
            length = piece.stop - piece.start
            token_ids[index, :length] = batch.token_ids[piece]
            trained[index, :length] = batch.loss_mask[piece]
            then[index, :length] = batch.logprobs[piece]
        if not trained.any():
            return 0.0
        device = self._model.device
        ids, mask, logprobs_then = (torch.from_numpy(part).to(device) for part in (token_ids, trained, then))
        logits = self._model(input_ids=ids, use_cache=False).logits[:, :-1].float() / batch.temperature
        logprobs = logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
        weights = (logprobs.detach() - logprobs_then[:, 1:]).clamp(max=math.log(self.options.weight_cap)).exp()
        gains = torch.from_numpy(advantages[rows].astype(np.float32)).to(device)[:, None] * weights * logprobs
        loss = -gains[mask[:, 1:]].sum() / max(1, batch.num_response_tokens)
        loss.backward()
        return float(loss.detach())

    # Weights for the engines ------------------------------------------------------------------------------------------------

    def _weights(self) -> dict[str, torch.Tensor]:
        """Every parameter in the dtype that is published, by its name; tied ones once."""
        return {name: parameter.detach().to(self._dtype) for name, parameter in self._model.named_parameters()}

    @hookimpl
    def export_model(self, directory: Path) -> Exported:
        return self._export(directory, {name: tensor.contiguous().cpu() for name, tensor in self._weights().items()})

    def _export(self, directory: Path, weights: dict[str, torch.Tensor]) -> Exported:
        from safetensors.torch import save_file

        directory.mkdir(parents=True, exist_ok=True)
        mark_incomplete(directory)
        for file in self._source.iterdir():  # config and tokenizer
            if file.is_file() and not file.name.startswith((".", "model.", "model-", "pytorch_model")):
                shutil.copyfile(file, directory / file.name)
        config = json.loads((self._source / "config.json").read_text(encoding="utf-8"))
        config["dtype"] = str(self._dtype).removeprefix("torch.")
        (directory / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
        save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
        mark_complete(directory)
        return Exported(directory, sum(tensor.nbytes for tensor in weights.values()), weights_digest(weights.items()))

    @hookimpl
    def weight_manifest(self) -> WeightManifest:
        weights = self._weights()
        dtype = str(self._dtype).removeprefix("torch.")
        self._buckets = [WeightBucket((name,), (dtype,), (tuple(tensor.shape),)) for name, tensor in weights.items()]
        num_bytes = sum(tensor.nbytes for tensor in weights.values())
        return WeightManifest(tuple(self._buckets), num_bytes, weights_digest(weights.items()))

    @hookimpl
    def join_weight_group(self, group: WeightGroup) -> None:
        import torch.distributed as dist

        self._left.clear()
        timeout = timedelta(seconds=group.timeout)
        nccl = group.backend == "nccl"
        try:
            listening = socket.create_server(
                (group.address, group.port)
            ).detach()  # by itself, the store listens at every address
            store = dist.TCPStore(group.address, group.port, group.world_size, True, timeout, master_listen_fd=listening)
            # The prefixes under which torch, and so the engines, look for a group of this name.
            named = dist.PrefixStore(f"{group.name}/", dist.PrefixStore(group.name, store))
            if nccl:
                options = dist.ProcessGroupNCCL.Options()
                options._timeout = 2 * timeout  # its watchdog would end the process before our own deadline
                self._group = dist.ProcessGroupNCCL(dist.PrefixStore("cuda/", named), 0, group.world_size, options)
            else:
                self._group = dist.ProcessGroupGloo(dist.PrefixStore("cpu/", named), 0, group.world_size, timeout)
        except RuntimeError as cause:
            raise PublicationError(f"the weight group {group.name!r} did not come about: {cause}") from cause
        self._timeout, self._packed = group.timeout, group.packed
        self._device = self._model.device if nccl else "cpu"

    @hookimpl
    def broadcast_bucket(self, index: int) -> int:
        import torch
        import torch.distributed as dist

        parameters, group = dict(self._model.named_parameters()), self._group
        if group is None:
            raise PublicationError("no weight group was joined")
        options = dist.BroadcastOptions()
        options.rootRank = 0
        sent = [parameters[name].detach().to(self._device, self._dtype).contiguous() for name in self._buckets[index].names]
        if self._packed and self._buckets[index].can_be_packed:
            sent = [torch.cat([tensor.view(-1).view(torch.uint8) for tensor in sent])]
        try:
            works = [group.broadcast([tensor], options) for tensor in sent]
            self._wait(works)
        except RuntimeError as cause:
            raise PublicationError(f"the broadcast of the weights failed: {cause}") from cause
        return sum(tensor.nbytes for tensor in sent)

    def _wait(self, works: list[Any]) -> None:
        deadline = time.monotonic() + self._timeout
        while not all(work.is_completed() for work in works):
            if self._left.wait(0.001):
                raise PublicationError("the broadcast of the weights was given up")
            if time.monotonic() > deadline:
                raise PublicationError(f"the broadcast of the weights did not end within {self._timeout:g} s")
        for work in works:
            work.wait()

    @hookimpl
    def leave_weight_group(self) -> None:
        self._left.set()
        group, self._group = self._group, None
        if group is not None:
            with suppress(RuntimeError):
                group.abort()
            self._groups_left.append(group)  # to free one in which a send is stuck would stop the whole process

    # Checkpoints ------------------------------------------------------------------------------------------------------------

    @hookimpl
    def capture_trainer(self) -> None:
        state = {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}
        weights = {name: tensor.cpu().clone() for name, tensor in self._weights().items()}
        self._captured = copy.deepcopy(state), weights

    @hookimpl
    def save_trainer(self, directory: Path, model: Path) -> Exported:
        import torch

        state, weights = self._captured
        directory.mkdir(parents=True, exist_ok=True)
        torch.save(state, directory / STATE)
        return self._export(model, weights)

    @hookimpl
    def load_trainer(self, directory: Path) -> None:
        import torch

        state = torch.load(directory / STATE, map_location=self._model.device, weights_only=True)
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])

    @hookimpl
    def trainer_close(self) -> None:
        self.leave_weight_group()
        self._model = self._optimizer = None

"""One trainer rank in a Ray actor: a thin shell around the trainer plugin's hooks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import ray

from asyncrl.authoring import RunFacts
from asyncrl.hookspecs import PROCESSES
from asyncrl.host import Host
from asyncrl.network import is_loopback, loopback_environment, reached_at
from asyncrl.plugins import PluginSpec, build_host
from asyncrl.stacks import register
from asyncrl.training.interfaces import (
    Exported,
    StepReport,
    TrainerFacts,
    TrainerPlace,
    TrainingBatch,
    WeightGroup,
    WeightManifest,
)
from asyncrl.training.publication import free_port


class TrainerActor:
    """Collective calls run one after the other in one thread; `save`, `leave_weight_group` and `here` have threads of their own."""

    def __init__(self, specs: Sequence[PluginSpec], facts: RunFacts) -> None:
        self._specs = specs
        self._facts = facts

    @cached_property
    def _host(self) -> Host:
        """Made in the first call, so that what is wrong with a plugin arrives as itself: a constructor's error is only a dead actor."""
        return build_host(self._specs, self._facts, slots=PROCESSES["trainer"])

    def here(self) -> None:
        """Answer, whatever the rank is doing."""

    def rendezvous(self, bind: str) -> tuple[str, int]:
        """Return the address at which rank 0 is reached if it listens at `bind`, and a free port on it."""
        address = reached_at(bind, ray.util.get_node_ip_address())
        return address, free_port(address)

    def open(self, place: TrainerPlace) -> TrainerFacts:
        register(f"trainer rank {place.rank}", self._facts.run_dir)
        if is_loopback(place.master_address):
            os.environ.update(loopback_environment())
        local_rank = 0 if len(os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")) <= 1 else place.local_rank
        facts: TrainerFacts = self._host.one("trainer_open")(place=replace(place, local_rank=local_rank))
        return facts

    def train(self, batch: TrainingBatch) -> StepReport:
        report: StepReport = self._host.one("train_batch")(batch=batch)
        return report

    def export(self, directory: Path) -> Exported:
        exported: Exported = self._host.one("export_model")(directory=directory)
        return exported

    def manifest(self) -> WeightManifest:
        manifest: WeightManifest = self._host.one("weight_manifest")()
        return manifest

    def join(self, group: WeightGroup) -> None:
        self._host.one("join_weight_group")(group=group)

    def broadcast(self, index: int) -> int:
        sent: int = self._host.one("broadcast_bucket")(index=index)
        return sent

    def leave(self) -> None:
        self._host.one("leave_weight_group")()

    def capture(self) -> None:
        self._host.one("capture_trainer")()

    def save(self, directory: Path, model: Path) -> Exported:
        exported: Exported = self._host.one("save_trainer")(directory=directory, model=model)
        return exported

    def load(self, directory: Path) -> None:
        self._host.one("load_trainer")(directory=directory)

    def close(self) -> None:
        self._host.one("trainer_close")()

"""FSDP2 trainer: GRPO, PPO clip, importance corrections, sharded checkpoints. Imports torch only when it is opened."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from asyncrl import (
    Exported,
    Plugin,
    RunFacts,
    StepReport,
    TrainerError,
    TrainerFacts,
    TrainerPlace,
    TrainingBatch,
    WeightGroup,
    WeightManifest,
    hookimpl,
)

from asyncrl_fsdp.metrics import FsdpMetrics
from asyncrl_fsdp.options import FsdpOptions, check_options

if TYPE_CHECKING:
    from asyncrl_fsdp.trainer import Trainer

__all__ = ["FsdpMetrics", "FsdpOptions", "FsdpTrainer"]


class FsdpTrainer(Plugin):
    """Trains a Hugging Face causal LM with FSDP2 on one rank or many. Each hook's contract is in `asyncrl.hookspecs`."""

    hook_api = 1
    Options = FsdpOptions
    Metrics = FsdpMetrics

    options: FsdpOptions
    _opened: Trainer | None = None

    @property
    def _trainer(self) -> Trainer:
        if self._opened is None:
            raise TrainerError("the trainer is not open")
        return self._opened

    @hookimpl
    def check_run(self, run: RunFacts) -> None:
        check_options(self.options, run)

    @hookimpl
    def trainer_open(self, place: TrainerPlace) -> TrainerFacts:
        from asyncrl_fsdp.trainer import Trainer

        self._opened = Trainer(self.options, place)
        return self._opened.facts()

    @hookimpl
    def train_batch(self, batch: TrainingBatch) -> StepReport:
        return self._trainer.train(batch)

    @hookimpl
    def export_model(self, directory: Path) -> Exported:
        return self._trainer.export(directory)

    @hookimpl
    def weight_manifest(self) -> WeightManifest:
        return self._trainer.weight_manifest()

    @hookimpl
    def join_weight_group(self, group: WeightGroup) -> None:
        self._trainer.join_weight_group(group)

    @hookimpl
    def broadcast_bucket(self, index: int) -> int:
        return self._trainer.broadcast_bucket(index)

    @hookimpl
    def leave_weight_group(self) -> None:
        self._trainer.leave_weight_group()

    @hookimpl
    def capture_trainer(self) -> None:
        self._trainer.capture()

    @hookimpl
    def save_trainer(self, directory: Path, model: Path) -> Exported:
        return self._trainer.save(directory, model)

    @hookimpl
    def load_trainer(self, directory: Path) -> None:
        self._trainer.load(directory)

    @hookimpl
    def trainer_close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

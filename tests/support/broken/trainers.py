"""Trainers of a few numbers that break one rule each."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from asyncrl import (
    Exported,
    Gauge,
    MetricSet,
    Plugin,
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
from asyncrl.testing.models import vocab_size
from asyncrl.training.snapshots import mark_complete

from broken.breaking import breaks


class Metrics(MetricSet):
    loss = Gauge("Loss", unit="nats")
    share = Gauge("Share of the tokens of an age", unit="ratio", label="age")


@breaks("")
class Right(Plugin):
    """Weights are four numbers; a step moves them by the mean reward of what is trained, with momentum."""

    Metrics = Metrics
    weights: Any = None

    @hookimpl
    def trainer_open(self, place: TrainerPlace) -> TrainerFacts:
        self.model, self.weights, self.momentum = place.model, np.zeros(4, np.float32), np.zeros(4, np.float32)
        return TrainerFacts(4, self.weights.nbytes, vocab_size(place.model), self.digest())

    def digest(self) -> str:
        return hashlib.sha256(self.weights.tobytes()).hexdigest()

    @hookimpl
    def train_batch(self, batch: TrainingBatch) -> StepReport:
        return self.train(batch)

    def train(self, batch: TrainingBatch) -> StepReport:
        self.momentum = 0.5 * self.momentum + float(batch.logprobs[batch.loss_mask].sum()) * np.arange(4, dtype=np.float32)
        self.weights = self.weights + self.momentum
        norm = float(np.linalg.norm(self.momentum))
        return StepReport({"loss": norm}, norm, len(batch.token_ids), 0.1, {"share": {0: 1.0}})

    @hookimpl
    def export_model(self, directory: Path) -> Exported:
        return self.export(directory)

    def export(self, directory: Path) -> Exported:
        return self.write_model(directory, self.digest())

    @hookimpl
    def weight_manifest(self) -> WeightManifest:
        return self.manifest()

    def manifest(self) -> WeightManifest:
        return WeightManifest((WeightBucket(("weights",), ("float32",), ((4,),)),), self.weights.nbytes, self.digest())

    @hookimpl
    def join_weight_group(self, group: WeightGroup) -> None: ...

    @hookimpl
    def broadcast_bucket(self, index: int) -> int:
        return 0

    @hookimpl
    def leave_weight_group(self) -> None: ...

    @hookimpl
    def capture_trainer(self) -> None:
        self.captured = self.state(), self.digest()

    @hookimpl
    def save_trainer(self, directory: Path, model: Path) -> Exported:
        directory.mkdir()
        state, digest = self.captured
        np.save(directory / "state.npy", state)
        return self.write_model(model, digest)

    def write_model(self, directory: Path, digest: str) -> Exported:
        shutil.copytree(self.model, directory)
        mark_complete(directory)
        return Exported(directory, self.weights.nbytes, digest)

    def state(self) -> Any:
        return np.stack([self.weights, self.momentum])

    @hookimpl
    def load_trainer(self, directory: Path) -> None:
        self.weights, self.momentum = np.load(directory / "state.npy")

    @hookimpl
    def trainer_close(self) -> None:
        self.close()

    def close(self) -> None:
        self.weights = None


@breaks("test_it_opens")
class GuessesItsVocabulary(Right):
    @hookimpl
    def trainer_open(self, place: TrainerPlace) -> TrainerFacts:
        return replace(super().trainer_open(place), vocab_size=1)


@breaks("test_its_manifest_describes_the_weights")
class SendsTwice(Right):
    def manifest(self) -> WeightManifest:
        right = super().manifest()
        return replace(right, buckets=right.buckets * 2)


@breaks("test_a_step_changes_the_weights")
class SaysThatNothingChanged(Right):
    def train(self, batch: TrainingBatch) -> StepReport:
        return replace(super().train(batch), update_norm=0.0)


@breaks("test_its_reports_are_right")
class ReportsWhatItDidNotDeclare(Right):
    def train(self, batch: TrainingBatch) -> StepReport:
        right = super().train(batch)
        return replace(right, metrics={**right.metrics, "los": 1.0})


@breaks("test_an_export_is_whole")
class ForgetsTheMarker(Right):
    def export(self, directory: Path) -> Exported:
        right = super().export(directory)
        (directory / ".complete").unlink()
        return right


@breaks("test_what_was_captured_is_saved")
class WritesItsPresentWeights(Right):
    @hookimpl
    def save_trainer(self, directory: Path, model: Path) -> Exported:
        self.captured = self.captured[0], self.digest()
        return super().save_trainer(directory, model)


@breaks("test_a_restored_one_goes_on")
class ForgetsItsMomentum(Right):
    def state(self) -> Any:
        return np.stack([self.weights, np.zeros_like(self.momentum)])


@breaks("", exact_resume=False)
class SaysThatItForgets(ForgetsItsMomentum): ...


@breaks("test_a_batch_without_gradient_does_no_harm")
class DividesByWhatIsTrained(Right):
    def train(self, batch: TrainingBatch) -> StepReport:
        if not batch.loss_mask.any():
            raise TrainerError("nothing is trained")
        return super().train(batch)


@breaks("test_it_closes")
class ClosesOnce(Right):
    def close(self) -> None:
        if self.weights is None:
            raise TrainerError("it is closed already")
        super().close()

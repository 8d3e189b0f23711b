"""One rank or two, real processes over gloo: the same loss, gradient, weights; checkpoints fit either."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asyncrl import TrainingBatch
from asyncrl.training.digest import weights_digest
from asyncrl.training.snapshots import is_complete
from asyncrl_fsdp import FsdpTrainer
from transformers import Qwen3ForCausalLM

OPTIONS: list[dict[str, Any]] = [
    {"tokens_per_micro_batch": 30},
    {"reduction": "sequence-mean", "correction": "tis", "updates_per_step": 2, "tokens_per_micro_batch": 64},
    {"activation_checkpointing": True},
]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("places")


@pytest.fixture(scope="module")
def batches(make_batch: Callable[..., TrainingBatch]) -> list[TrainingBatch]:
    # The last has three samples in all: one rank has fewer than the other and must keep in step.
    return [make_batch(seed=1, noise=0.5), make_batch(seed=2), make_batch(seed=3, groups=3, group_size=1)]


@pytest.fixture(scope="module")
def two_ranks(
    run_ranks: Callable[..., list[Any]], batches: list[TrainingBatch], places: Path, saved_by_one: Path
) -> list[list[Any]]:
    """Answers of two ranks: a job for each of OPTIONS, then one that saves and exports, then one that goes on from one rank's state."""
    train = [("train_batch", batch) for batch in batches]
    jobs = [{"options": options, "actions": train} for options in OPTIONS]
    jobs += [
        {
            "options": {},
            "actions": [
                train[0],
                ("capture_trainer", None),
                ("weight_manifest", None),
                ("export_model", places / "export"),
                ("export_model", Path("/dev/null/no")),
                ("train_while_saving", (batches[1:], places / "two", places / "two-model")),
            ],
        },
        {"options": {}, "actions": [("load_trainer", saved_by_one), ("weight_manifest", None), train[1]]},
    ]
    return run_ranks(2, jobs)


@pytest.fixture(scope="module")
def saved_by_one(places: Path) -> Path:
    return places / "one"


@pytest.fixture(scope="module", autouse=True)
def one_saves(run_ranks: Callable[..., list[Any]], batches: list[TrainingBatch], saved_by_one: Path, places: Path) -> None:
    jobs = [
        {
            "options": {},
            "actions": [
                ("train_batch", batches[0]),
                ("capture_trainer", None),
                ("save_trainer", (saved_by_one, places / "one-model")),
            ],
        }
    ]
    run_ranks(1, jobs)


def digest_in(directory: Path) -> str:
    assert is_complete(directory)
    return weights_digest(Qwen3ForCausalLM.from_pretrained(directory).named_parameters())


def same(left: dict[str, Any], right: dict[str, Any]) -> None:
    for name, value in left["metrics"].items():
        assert right["metrics"][name] == pytest.approx(value, rel=1e-3, abs=1e-5), name
    for name, series in left["by_age"].items():
        assert right["by_age"][name] == pytest.approx(series, rel=1e-3, abs=1e-5), name
    assert left["num_tokens"] == right["num_tokens"]


@pytest.mark.parametrize("index", range(len(OPTIONS)))
def test_two_ranks_train_as_one(
    two_ranks: list[list[Any]], open_trainer: Callable[..., FsdpTrainer], batches: list[TrainingBatch], index: int
) -> None:
    trainer = open_trainer(**OPTIONS[index])
    for batch, answer in zip(batches, two_ranks[index][1:], strict=True):
        report = trainer.train_batch(batch)
        same({"metrics": report.metrics, "by_age": report.by_age, "num_tokens": report.num_tokens}, answer)


def test_two_ranks_export_a_directory_of_their_weights(two_ranks: list[list[Any]], places: Path) -> None:
    manifest, exported = two_ranks[len(OPTIONS)][3:5]
    assert digest_in(places / "export") == exported.digest == manifest.digest


def test_two_ranks_save_what_they_captured_while_they_train(two_ranks: list[list[Any]], places: Path) -> None:
    manifest, saved = two_ranks[len(OPTIONS)][3], two_ranks[len(OPTIONS)][6]
    assert digest_in(places / "two-model") == saved["digest"] == manifest.digest


def test_failed_export_is_an_error_on_every_rank(two_ranks: list[list[Any]]) -> None:
    """The ranks that only help to gather must not wait for one that gave up."""
    answers = two_ranks[len(OPTIONS)]
    assert answers[5]["error"].startswith("CheckpointError: export to /dev/null/no")
    assert "metrics" in answers[6]


def test_two_ranks_go_on_from_the_state_of_one(two_ranks: list[list[Any]]) -> None:
    kept_on, resumed = two_ranks[len(OPTIONS)][6], two_ranks[len(OPTIONS) + 1][3]
    same(kept_on, resumed)


def test_one_rank_goes_on_from_the_state_of_two(
    two_ranks: list[list[Any]], open_trainer: Callable[..., FsdpTrainer], batches: list[TrainingBatch], places: Path
) -> None:
    trainer = open_trainer()
    trainer.load_trainer(places / "two")
    assert trainer.weight_manifest().digest == two_ranks[len(OPTIONS)][3].digest
    report = trainer.train_batch(batches[1])
    same(two_ranks[len(OPTIONS)][6], {"metrics": report.metrics, "by_age": report.by_age, "num_tokens": report.num_tokens})

"""Mixtures of experts: one tensor a layer in memory, one an expert on disk and in a broadcast."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from asyncrl import DataError, TrainingBatch
from asyncrl_fsdp import FsdpTrainer, broadcast, export
from safetensors.torch import load_file, save_file
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

Open = Callable[..., FsdpTrainer]
SIZES: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "hidden_size": 32, "moe_intermediate_size": 20}


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face directory of a Qwen3 mixture of four experts, two of them active."""
    directory = tmp_path_factory.mktemp("experts")
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=64,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        initializer_range=0.2,
        **SIZES,
    )
    Qwen3MoeForCausalLM(config).save_pretrained(directory)
    return directory


def stored(directory: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in directory.glob("*.safetensors") for name, tensor in load_file(file).items()}


def test_what_is_exported_is_named_and_shaped_as_what_was_loaded(
    open_trainer: Open, make_batch: Callable[..., TrainingBatch], experts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "SHARD_BYTES", 20_000)
    trainer = open_trainer(model=experts)
    before, untrained = stored(experts), trainer.export_model(tmp_path / "untrained")
    same = stored(tmp_path / "untrained")
    assert same.keys() == before.keys() and all(torch.equal(same[name], before[name]) for name in before)
    trainer.train_batch(make_batch())
    exported = trainer.export_model(tmp_path / "trained")
    assert exported.digest == trainer.weight_manifest().digest != untrained.digest
    loaded = Qwen3MoeForCausalLM.from_pretrained(tmp_path / "trained")
    for (name, one), other in zip(loaded.named_parameters(), trainer._trainer._model.parameters(), strict=True):
        assert torch.equal(one, other), name
    name = "model.layers.0.mlp.experts.3.down_proj.weight"
    assert not torch.equal(stored(tmp_path / "trained")[name], before[name])


@pytest.mark.parametrize("bucket_bytes", [5_000, 2**30])
def test_a_broadcast_sends_each_expert_under_its_own_name(open_trainer: Open, experts: Path, bucket_bytes: int) -> None:
    """Also where a bucket ends in the middle of a layer's experts."""
    weights = open_trainer(model=experts)._trainer._weights
    manifest = broadcast.manifest(weights, torch.float32, bucket_bytes)
    sent = {
        name: tensor
        for bucket in manifest.buckets
        for name, tensor in zip(bucket.names, weights.some(bucket.names, torch.float32), strict=True)
    }
    before = stored(experts)
    assert sent.keys() == before.keys() and all(torch.equal(sent[name], before[name]) for name in before)
    assert all(tensor.is_contiguous() for tensor in sent.values())


def test_two_ranks_export_what_one_does(
    run_ranks: Callable[..., list[Any]], experts: Path, make_batch: Callable[..., TrainingBatch], tmp_path: Path
) -> None:
    actions = [("train_batch", make_batch()), ("export_model", tmp_path / "two"), ("weight_manifest", None)]
    ((_, report, exported, manifest),) = run_ranks(2, [{"options": {}, "model": str(experts), "actions": actions}])
    assert exported.digest == manifest.digest and report["metrics"]
    assert stored(tmp_path / "two").keys() == stored(experts).keys()


def test_a_model_that_lacks_an_expert_is_refused(open_trainer: Open, experts: Path, tmp_path: Path) -> None:
    few = tmp_path / "few"
    few.mkdir()
    (few / "config.json").write_bytes((experts / "config.json").read_bytes())
    kept = {name: tensor for name, tensor in stored(experts).items() if ".experts.3." not in name}
    save_file(kept, few / "model.safetensors", {"format": "pt"})
    with pytest.raises(DataError):
        open_trainer(model=few)

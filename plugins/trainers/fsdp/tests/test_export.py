"""An export is an ordinary Hugging Face directory, complete or not marked as such."""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from asyncrl import DataError, TrainingBatch
from asyncrl.errors import CheckpointError
from asyncrl.training.digest import weights_digest
from asyncrl.training.snapshots import MARKER, is_complete
from asyncrl_fsdp import FsdpTrainer, export
from planted_code import plant
from transformers import AutoModelForCausalLM, Qwen3ForCausalLM

Open = Callable[..., FsdpTrainer]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("files", [1, 5])
def test_loaded_weights_have_the_digest(
    open_trainer: Open,
    make_batch: Callable[..., TrainingBatch],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    dtype: str,
    files: int,
) -> None:
    """Field report 22."""
    if files > 1:
        monkeypatch.setattr(export, "SHARD_BYTES", 262752 * getattr(torch, dtype).itemsize // 4 // (files - 1))
    trainer = open_trainer(publish_dtype=dtype)
    trainer.train_batch(make_batch())
    exported = trainer.export_model(tmp_path / "model")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype="auto")
    assert loaded.dtype is getattr(torch, dtype)
    assert weights_digest(loaded.named_parameters()) == exported.digest == trainer.weight_manifest().digest
    assert exported.num_bytes == sum(p.numel() * p.element_size() for p in loaded.parameters())
    assert (len(list((tmp_path / "model").glob("*.safetensors"))) > 1) == (files > 1)


def test_directory_holds_config_and_tokenizer(open_trainer: Open, tiny_model: Path, tmp_path: Path) -> None:
    open_trainer().export_model(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"model.safetensors", "config.json", "generation_config.json", "tokenizer.json", MARKER}
    assert (tmp_path / "tokenizer.json").read_bytes() == (tiny_model / "tokenizer.json").read_bytes()


def test_second_export_to_one_place_replaces_the_first(
    open_trainer: Open, make_batch: Callable[..., TrainingBatch], tmp_path: Path
) -> None:
    trainer = open_trainer()
    first = trainer.export_model(tmp_path)
    trainer.train_batch(make_batch())
    second = trainer.export_model(tmp_path)
    assert first.digest != second.digest
    assert weights_digest(Qwen3ForCausalLM.from_pretrained(tmp_path).named_parameters()) == second.digest


def test_write_that_fails_leaves_no_marker(open_trainer: Open, tmp_path: Path) -> None:
    """A real failing write: the process may not make files above 64 KB, as on a full disk."""
    trainer = open_trainer()
    trainer.export_model(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, hard))
    try:
        with pytest.raises(CheckpointError, match="File too large"):
            trainer.export_model(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not is_complete(tmp_path)
    trainer.export_model(tmp_path)
    assert is_complete(tmp_path)


def test_too_little_space_is_said_in_numbers(open_trainer: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = open_trainer()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(CheckpointError, match="needs 262,752 bytes, 1,000 are free"):
        trainer.export_model(tmp_path)


def test_model_stored_under_other_names_is_refused(open_trainer: Open, tiny_model: Path, tmp_path: Path) -> None:
    """Field report 22: engines that load by name would keep their old weights."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(tiny_model, tmp_path / "odd")
    tensors = load_file(tiny_model / "model.safetensors")
    save_file(
        {name.removeprefix("model."): t for name, t in tensors.items()}, tmp_path / "odd/model.safetensors", {"format": "pt"}
    )
    with pytest.raises(DataError, match="under other names"):
        open_trainer(model=tmp_path / "odd")


def test_no_model_is_one_clear_error(open_trainer: Open, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no Hugging Face model at"):
        open_trainer(model=tmp_path)


def test_the_code_of_a_model_is_never_run(open_trainer: Open, tiny_model: Path, tmp_path: Path) -> None:
    marker = plant(tiny_model, tmp_path / "planted")
    with pytest.raises(DataError, match="model: .* needs code of its own, which is never run: trust_remote_code is off"):
        open_trainer(model=tmp_path / "planted")
    assert not marker.exists()


def test_model_with_scaled_logits_is_refused(open_trainer: Open, tiny_model: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_model, tmp_path / "capped")
    config = json.loads((tiny_model / "config.json").read_text())
    (tmp_path / "capped/config.json").write_text(json.dumps({**config, "final_logit_softcapping": 30.0}))
    with pytest.raises(DataError, match="final_logit_softcapping = 30"):
        open_trainer(model=tmp_path / "capped")

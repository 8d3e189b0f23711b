"""Small models to test with: one that generates, a copy of it with other weights, and one that is only a tokenizer of characters."""

from __future__ import annotations

import json
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from asyncrl.errors import AsyncrlError
from asyncrl.plugins import SLOTS, discover, load
from asyncrl.run_options import RunOptions
from asyncrl.testing.groups import small_run

BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2}
SPECIAL = ("<pad>", "<bos>", "<eos>")
CHARACTERS = (*map(chr, range(32, 127)), "\n")


def cache_dir() -> Path:
    """Return where runs keep their models too, so that one is made once."""
    return RunOptions.model_validate({}).cache_dir


@cache
def default_model() -> Path:
    """Return the Hugging Face directory of the default task's own model; skips the test where that is not to be had."""
    name = SLOTS["task"].defaults[0]
    try:
        kind = load(discover().pick("task", name, "the suite"))
        task: Any = kind(kind.Options(), small_run())
        model: Path = task.task_model(cache_dir())
    except AsyncrlError as error:
        pytest.skip(f"set `model` in the suite to a Hugging Face directory: the default task {name!r} has none here: {error}")
    return model


def vocab_size(model: Path) -> int:
    """Return the vocabulary's size by a model's config."""
    return int(json.loads((model / "config.json").read_text())["vocab_size"])


def altered_copy(model: Path, folder: Path) -> Path:
    """Copy a model into `folder` with the last bit of every weight flipped: the same model but for its digest."""
    shutil.copytree(model, folder)
    for file in folder.glob("*.safetensors"):
        content = bytearray(file.read_bytes())
        data = 8 + int.from_bytes(content[:8], "little")
        header: dict[str, Any] = json.loads(content[8:data])
        for name, about in header.items():
            if name != "__metadata__":
                start, end = (data + offset for offset in about["data_offsets"])
                lowest = slice(start, end, BYTES.get(about["dtype"], 1))
                content[lowest] = bytes(byte ^ 1 for byte in content[lowest])
        file.write_bytes(content)
    return folder


def character_model() -> Path:
    """Return a directory with a config and a tokenizer of one token for each printable ASCII character; it has no weights."""
    place = cache_dir() / "suite-characters-1"
    if not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=place.parent))
        _write_characters(folder)
        try:
            folder.rename(place)
        except OSError:  # another session was quicker
            shutil.rmtree(folder)
    return place


def _write_characters(folder: Path) -> None:
    vocabulary = {token: index for index, token in enumerate((*SPECIAL, *CHARACTERS))}
    special = [
        {"id": vocabulary[token], "content": token, "special": True, "normalized": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        for token in SPECIAL
    ]
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated", "invert": False},
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<pad>"},
    }
    names = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>"}
    config = {"model_type": "qwen3", "vocab_size": len(vocabulary), "eos_token_id": 2, "max_position_embeddings": 4096}
    for name, content in {
        "config.json": config,
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **names},
    }.items():
        (folder / name).write_text(json.dumps(content))

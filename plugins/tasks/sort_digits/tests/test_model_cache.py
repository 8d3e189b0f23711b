"""The task's own model: made once in a child process, kept whole, an ordinary Hugging Face directory."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from asyncrl import ResourceError
from asyncrl_sort_digits.model_cache import CONTENT, Recipe, describe, is_whole, locked, model_directory
from asyncrl_sort_digits.problems import BOS, CHARACTERS, EOS, TOKEN_OF

QUICK = Recipe(seed=3, steps=2)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def directory(cache: Path) -> Path:
    return model_directory(cache, QUICK)


def test_the_model_is_an_ordinary_hugging_face_directory(directory: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(directory)
    assert sum(parameter.numel() for parameter in model.parameters()) == 796_032
    assert model.generation_config.eos_token_id == EOS
    assert model.config.rope_parameters["rope_theta"] == 10_000
    tokenizer = AutoTokenizer.from_pretrained(directory)
    assert tokenizer.encode(CHARACTERS) == [TOKEN_OF[character] for character in CHARACTERS] == list(range(3, 56))
    assert tokenizer.encode("<bos>312=") == [BOS, 6, 4, 5, TOKEN_OF["="]]
    assert tokenizer.decode(tokenizer.encode("312=, a b")) == "312=, a b"
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)


def test_making_it_imports_no_torch_here(cache: Path) -> None:
    script = f"""
import sys
from pathlib import Path
from asyncrl_sort_digits.model_cache import Recipe, model_directory
model_directory(Path({str(cache)!r}), Recipe(seed=3, steps=2))
assert not {{"torch", "transformers"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_it_is_made_once_with_the_same_weights_and_the_user_is_told(
    tmp_path: Path, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = (directory / "model.safetensors").stat().st_mtime_ns
    with caplog.at_level(logging.INFO, logger="asyncrl"):
        assert model_directory(directory.parent, QUICK) == directory
        assert caplog.messages == []
        elsewhere = model_directory(tmp_path, QUICK)
    assert (directory / "model.safetensors").stat().st_mtime_ns == before
    assert (elsewhere / "model.safetensors").read_bytes() == (directory / "model.safetensors").read_bytes()
    assert "making the sort-digits model for seed 3" in caplog.messages[0]


def test_other_options_are_another_entry() -> None:
    names = {
        QUICK.name(),
        Recipe(seed=4, steps=2).name(),
        Recipe(seed=3, steps=3).name(),
        Recipe(3, max_digits=6, steps=2).name(),
    }
    assert len(names) == 4


@pytest.mark.parametrize("damage", ["truncated", "missing", "changed", "undescribed"])
def test_a_torn_entry_is_noticed(damage: str, tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(b"12345678")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / CONTENT).write_text(json.dumps(describe(tmp_path)))
    assert is_whole(tmp_path)
    if damage == "truncated":
        (tmp_path / "weights").write_bytes(b"1234")
    elif damage == "changed":
        (tmp_path / "weights").write_bytes(b"12345679")
    elif damage == "missing":
        (tmp_path / "config.json").unlink()
    else:
        (tmp_path / CONTENT).write_text("{")
    assert not is_whole(tmp_path)


def test_two_runs_at_once_make_a_torn_entry_again_once(cache: Path, directory: Path) -> None:
    """What a killed run left beside it is cleared away too."""
    whole = (directory / "model.safetensors").read_bytes()
    (directory / "model.safetensors").write_bytes(whole[:1000])
    (cache / f"{directory.name}.partial-1").mkdir()
    script = f"""
import logging
from pathlib import Path
from asyncrl_sort_digits.model_cache import Recipe, model_directory
logging.basicConfig(level=logging.INFO, format="%(message)s")
model_directory(Path({str(cache)!r}), Recipe(seed=3, steps=2))
"""
    runs = [subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [run.communicate(timeout=200)[1] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], said
    assert sum("making the sort-digits model" in text for text in said) == 1
    assert (directory / "model.safetensors").read_bytes() == whole
    assert is_whole(directory) and not list(cache.glob("*.partial-*"))


def test_the_child_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    script = f"""
from pathlib import Path
from asyncrl_sort_digits.model_cache import Recipe, model_directory
model_directory(Path({str(tmp_path)!r}), Recipe(seed=3, steps=10**6))
"""
    parent = subprocess.Popen([sys.executable, "-c", script])
    deadline = time.monotonic() + 60
    while not (children := psutil.Process(parent.pid).children()) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert children and not alive


def test_a_failure_of_the_child_is_told_in_its_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch is broken')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"warm start of the sort-digits model failed[\s\S]*libtorch is broken"):
        model_directory(tmp_path / "cache", QUICK)
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]


def test_a_cache_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match="cache_dir: can't keep the model in"):
        model_directory(tmp_path / "file", QUICK)


def test_the_lock_is_waited_for(tmp_path: Path) -> None:
    order: list[str] = []

    def second() -> None:
        with locked(tmp_path / "lock"):
            order.append("second")

    with locked(tmp_path / "lock"):
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.2)
        order.append("first")
    thread.join(timeout=60)
    assert order == ["first", "second"]

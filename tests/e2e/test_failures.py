"""Bad input ends before anything starts, and a disk that fills up ends the run in one error; other faults: test_fault_matrix.py."""

from __future__ import annotations

import json
import os
import shutil
import socket
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def own_prompts(folder: Path) -> tuple[str, ...]:
    """Flags that select a task which takes any model."""
    (folder / "train.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n')
    return "--task", "jsonl", "--task.path", str(folder / "train.jsonl")


def check_refused(run, *words: str) -> None:
    assert run.wait() == 2, run.output
    line = run.output.strip().splitlines()[-1]
    assert line.startswith("asyncrl: error: ")
    for word in words:
        assert word in line
    assert "Traceback" not in run.output
    assert not run.directory.exists()
    assert run.left_behind() == []


def test_a_port_in_use_is_refused_before_anything_starts(start) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        check_refused(start("--base-port", str(port)), "--base-port", str(port), "in use")


def test_a_directory_without_a_model_is_refused(start, tmp_path: Path) -> None:
    check_refused(start("--model", str(tmp_path), *own_prompts(tmp_path)), "--model", "config.json")


@pytest.mark.parametrize("config", ["[]", "{}", '{"text_config": [1]}', "{", None])
def test_a_model_with_a_broken_config_is_refused(start, tmp_path: Path, config: str | None) -> None:
    if config is None:
        (tmp_path / "config.json").mkdir()
    else:
        (tmp_path / "config.json").write_text(config)
    check_refused(start("--model", str(tmp_path), *own_prompts(tmp_path)), "--model", "config.json")


def test_a_publish_directory_that_does_not_exist_is_refused_and_not_made(start, tmp_path: Path) -> None:
    check_refused(start("--publish-dir", str(tmp_path / "none")), "--publish-dir", "is no directory")
    assert not (tmp_path / "none").exists()


def test_a_ray_address_where_nothing_listens_is_refused(start) -> None:
    run = start("--ray-address", "127.0.0.1:1")
    assert run.wait() == 2, run.output
    assert "asyncrl: error: --ray-address: nothing answers at 127.0.0.1:1" in run.output
    assert not run.directory.exists()
    assert run.left_behind() == []


def test_no_space_for_a_checkpoint_is_refused_with_the_numbers(start, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"vocab_size": 64}))
    (model / "model.safetensors").touch()
    os.truncate(model / "model.safetensors", 8 * 2**40)  # a sparse file: 8 TiB that take no space
    run = start("--model", str(model), "--publish-method", "broadcast", *own_prompts(tmp_path))
    check_refused(run, "--runs-dir", "MB free", "needed")


def test_an_existing_run_directory_is_refused_and_not_touched(start, tmp_path: Path) -> None:
    (tmp_path / "runs" / "run").mkdir(parents=True)
    run = start()
    assert run.wait() == 2, run.output
    assert "exists already" in run.output
    assert list((tmp_path / "runs" / "run").iterdir()) == []


@pytest.mark.minutes
@pytest.mark.long
def test_a_disk_that_fills_up_during_the_run_is_one_error(start, tmp_path: Path) -> None:
    """The checkpoint's place becomes unwritable after the start, as a full disk does."""
    run = start("--steps", "1000", "--eval-interval", "0", "--save-interval", "3")
    run.wait_for_step(1)
    (run.directory / "checkpoints").write_text("not a directory")
    assert run.wait() == 1, run.output
    assert "asyncrl: error:" in run.output
    assert "checkpoint of step" in run.output
    assert "Traceback" not in run.output
    assert run.left_behind() == []
    shutil.rmtree(run.directory)

"""A torn checkpoint is never chosen, and none is unpickled."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from asyncrl.errors import CheckpointError, RunDirectoryError
from asyncrl.training.stored import ARRAYS_FILE, MANIFEST, RUN_FILE, choose, read, seal, write_state


def write(checkpoints: Path, step: int) -> Path:
    place = checkpoints / f"step-{step}"
    for name in ("trainer", "model"):
        (place / name).mkdir(parents=True)
    (place / "trainer" / "shard").write_bytes(b"t" * 1000)
    (place / "model" / "model.safetensors").write_bytes(b"m" * 1000)
    write_state(place, {"step": step, "version": step}, {"token_ids": np.arange(step, dtype=np.int32)})
    seal(place)
    return place


def cut_weights(place: Path) -> None:
    (place / "model" / "model.safetensors").write_bytes(b"m" * 999)


def lose_shard(place: Path) -> None:
    (place / "trainer" / "shard").unlink()


def lose_manifest(place: Path) -> None:
    (place / MANIFEST).unlink()


def cut_manifest(place: Path) -> None:
    (place / MANIFEST).write_text((place / MANIFEST).read_text()[:-10])


def change_state(place: Path) -> None:
    text = (place / RUN_FILE).read_text()
    (place / RUN_FILE).write_text(text.replace('"version": ', '"version":1'))


def change_arrays(place: Path) -> None:
    data = bytearray((place / ARRAYS_FILE).read_bytes())
    data[-100] ^= 1
    (place / ARRAYS_FILE).write_bytes(data)


TEARS = [cut_weights, lose_shard, lose_manifest, cut_manifest, change_state, change_arrays]


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "trainer/out/secret", "x\0y", "n" * 5000, "pipe"])
@pytest.mark.parametrize("entry", ["sizes", "sha256"])
def test_a_manifest_names_only_what_is_in_the_checkpoint(name: str, entry: str, tmp_path: Path) -> None:
    place = write(tmp_path, 4)
    (tmp_path / "secret").write_bytes(b"s")
    (place / "trainer" / "out").symlink_to(tmp_path)
    os.mkfifo(place / "pipe")
    manifest = json.loads((place / MANIFEST).read_text())
    manifest[entry][name] = hashlib.sha256(b"s").hexdigest() if entry == "sha256" else 1
    (place / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError) as refused:
        read(place)
    assert len(str(refused.value)) < 1000 or name.startswith("n")


def test_what_was_written_is_read(tmp_path: Path) -> None:
    stored = read(write(tmp_path, 4))
    assert (stored.step, stored.run["version"]) == (4, 4)
    assert stored.arrays()["token_ids"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("tear", TEARS)
def test_a_torn_newest_one_is_passed_over_with_a_warning(
    tmp_path: Path, tear: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, 9)
    tear(write(tmp_path, 10))
    with caplog.at_level(logging.WARNING, "asyncrl"):
        assert choose(tmp_path).step == 9
    assert "step-10" in caplog.text and "passed over" in caplog.text


def test_the_newest_is_the_one_of_the_highest_step(tmp_path: Path) -> None:
    for step in (10, 9, 100):
        write(tmp_path, step)
    assert choose(tmp_path).step == 100


@pytest.mark.parametrize("wanted", ["9", "step-9"])
def test_another_one_can_be_asked_for(tmp_path: Path, wanted: str) -> None:
    write(tmp_path, 9)
    write(tmp_path, 10)
    assert choose(tmp_path, wanted).step == 9


@pytest.mark.parametrize("wanted", ["step-8", "latest", "step-", "../step-9", "-9"])
def test_one_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path, wanted: str) -> None:
    write(tmp_path, 9)
    with pytest.raises(RunDirectoryError, match=r"--from: there is no checkpoint .*there are: step-9"):
        choose(tmp_path, wanted)


def test_a_torn_one_that_was_asked_for_is_refused(tmp_path: Path) -> None:
    write(tmp_path, 8)
    cut_weights(write(tmp_path, 9))
    with pytest.raises(RunDirectoryError, match=r"step-9 is not complete: .*999 bytes instead of 1000"):
        choose(tmp_path, "step-9")


def test_without_a_complete_one_the_error_says_what_is_wrong_with_each(tmp_path: Path) -> None:
    lose_shard(write(tmp_path, 9))
    (tmp_path / ".step-10.partial").mkdir()
    with pytest.raises(RunDirectoryError, match=r"no complete checkpoint; step-9: .*shard is missing"):
        choose(tmp_path)
    shutil.rmtree(tmp_path / "step-9")
    with pytest.raises(RunDirectoryError, match="no complete checkpoint"):
        choose(tmp_path)


def test_another_format_is_refused(tmp_path: Path) -> None:
    place = write(tmp_path, 1)
    (place / RUN_FILE).write_text('{"format": 99, "step": 1}')
    seal(place)
    with pytest.raises(CheckpointError, match="has format 99"):
        read(place)


def test_a_pickle_is_neither_written_nor_read(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="arrays of objects are never written: bad"):
        write_state(tmp_path, {}, {"bad": np.array([object()])})
    place = write(tmp_path, 1)
    with (place / ARRAYS_FILE).open("wb") as file:
        np.savez(file, bad=np.array([{"a": 1}], dtype=object))
    seal(place)
    with pytest.raises(CheckpointError, match="can't be read"):
        read(place).arrays()

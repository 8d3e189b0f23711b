"""What `asyncrl eval` refuses before it starts anything, and whose options it takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asyncrl.cli.eval import USES, _print
from asyncrl.cli.main import main
from asyncrl.evaluation.records import Checkpoint, EvalRecord, SetResult
from asyncrl.evaluation.subject import Subject, find_subject
from asyncrl.flags import scan
from asyncrl.options import SWITCHES, resolve_line
from asyncrl.training.snapshots import MARKER, mark_complete
from asyncrl.training.stored import seal, write_state

RUN: dict[str, Any] = {
    "step": 4,
    "version": 2,
    "digest": "d1",
    "trained": {"published": 4},
    "options": {"dtype": "float32"},
}


def model(directory: Path) -> Path:
    directory.mkdir(parents=True)
    (directory / "config.json").write_text('{"vocab_size": 64}')
    (directory / "model.safetensors").write_bytes(b"weights")
    return directory


def checkpoint(run: Path, **changed: Any) -> Path:
    """A complete checkpoint of a run, as far as reading it goes."""
    directory = run / "checkpoints/step-4"
    mark_complete(model(directory / "model"))
    write_state(directory, RUN | changed, {"lengths": np.zeros(1)})
    seal(directory)
    return directory


def broken(tmp_path: Path, damage: Callable[[Path], object]) -> Path:
    directory = checkpoint(tmp_path / "runs/one")
    damage(directory)
    return directory


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line of a command that was refused."""
    assert main(["eval", *map(str, arguments)]) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.count("\n") == 1
    return error.removeprefix("asyncrl: error: ").rstrip()


def test_without_a_checkpoint_it_says_how_it_is_called(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys).startswith("asyncrl eval: which checkpoint? (asyncrl eval CHECKPOINT ")


def test_what_is_no_checkpoint_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nothing, file, empty = tmp_path / "nothing", tmp_path / "file", tmp_path / "empty"
    file.touch()
    empty.mkdir()
    assert said(capsys, nothing).startswith(f"{nothing}: there is no such directory (name a Hugging Face directory")
    assert "is a file, and a checkpoint is a directory" in said(capsys, file)
    assert "holds no model: it has no file config.json" in said(capsys, empty)
    (empty / "config.json").write_text("{}")
    assert "holds no model: it has no *.safetensors" in said(capsys, empty)


def test_a_model_that_lacks_a_part_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = model(tmp_path / "model")
    parts = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": parts}))
    (directory / "model-1.safetensors").touch()
    assert "is not complete: model-2.safetensors is missing" in said(capsys, directory)
    (directory / "model.safetensors.index.json").write_text("[")
    assert "model.safetensors.index.json can't be read" in said(capsys, directory)


def test_a_run_is_told_from_its_checkpoints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint(tmp_path / "runs/one")
    assert said(capsys, tmp_path / "runs/one").endswith("is a run, and not one of its checkpoints (it has step-4)")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: (path / "manifest.json").unlink(), "manifest.json is missing"),
        (lambda path: (path / "model/model.safetensors").write_bytes(b"wei"), "has 3 bytes instead of 7"),
        (lambda path: (path / "run.json").write_text("{}"), "run.json has 2 bytes instead of"),
        (lambda path: (path / f"model/{MARKER}").unlink(), f"{MARKER} is missing"),
    ],
    ids=["no manifest", "torn weights", "torn state", "no marker"],
)
def test_a_checkpoint_that_is_not_complete_is_refused(
    damage: Callable[[Path], object], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(capsys, broken(tmp_path, damage))
    assert "is not complete: " in text and message in text


def test_a_checkpoint_that_is_still_being_written_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    growing = tmp_path / "runs/one/checkpoints/.step-6.partial"
    model(growing / "model")
    assert "is not complete: " in said(capsys, growing)


def test_a_checkpoint_brings_step_version_and_options_of_its_run(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "runs/one")
    (tmp_path / "runs/one/config.toml").write_text("group_size = 3\n")
    subject = find_subject(path)
    assert subject.checkpoint == Checkpoint(4, 2, path / "model", marked=True, digest="d1")
    assert (subject.name, subject.file, subject.dtype) == ("one-step-4", tmp_path / "runs/one/config.toml", "float32")


def test_weights_that_were_not_published_are_the_next_version(tmp_path: Path) -> None:
    assert find_subject(checkpoint(tmp_path / "runs/one", trained={"published": 2})).checkpoint.version == 3


def test_any_hugging_face_directory_is_a_checkpoint_of_no_run(tmp_path: Path) -> None:
    subject = find_subject(model(tmp_path / "qwen"))
    assert subject.checkpoint == Checkpoint(0, 0, tmp_path / "qwen", marked=False)
    assert (subject.name, subject.file) == ("qwen", None)


def test_only_what_an_evaluation_needs_is_selected(tmp_path: Path) -> None:
    """The trainer's options, which a run can't do without, need not be written."""
    file = tmp_path / "run.toml"
    file.write_text('[task]\nname = "sort-digits"\n[buffer]\nname = "not-installed"\n[eval]\nname = "shared"\n')
    config = resolve_line(scan([str(file)], SWITCHES), slots=USES)
    assert sorted(one.found.slot for one in config.plugins) == ["engine", "eval", "producer", "task"]


@pytest.mark.parametrize(
    "flags", [["--buffer", "fifo"], ["--trainer.learning-rate", "1"], ["--loggers", "console"]], ids=" ".join
)
def test_flags_of_other_slots_are_refused(flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, model(tmp_path / "qwen"), "--task", "sort-digits", *flags)
    assert text == f"{flags[0]}: asyncrl eval has no use for it (it uses task, producer, engine, eval)"


def test_the_checkpoint_is_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, model(tmp_path / "qwen"), "--task", "sort-digits", "--model", "other")
    assert text == "--model: the checkpoint is the model that is evaluated (leave it out)"


def test_a_model_that_the_task_can_not_use_is_refused_and_leaves_no_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--task", "sort-digits", "--runs-dir", tmp_path / "runs"]
    assert "needs its own tokenizer" in said(capsys, model(tmp_path / "qwen"), *flags)
    assert not (tmp_path / "runs").exists()


def test_a_misspelt_flag_is_answered_with_the_commands_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, model(tmp_path / "qwen"), "--jsn").endswith("(did you mean --json?)")


def test_the_table_has_a_row_a_set_and_a_column_a_k(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    greedy = SetResult(0.5, 4, 4, 0.25, 0.0, 5.25, 2.0, 0.0, pass_at={1: 0.5})
    sampled = SetResult(0.25, 4, 8, 0.0, 0.125, 12.0, 2.0, 0.0, pass_at={1: 0.25, 2: 0.375})
    subject = Subject(Checkpoint(4, 2, model(tmp_path / "qwen"), marked=False), "qwen")
    _print(EvalRecord(4, 2, sets={"greedy": greedy, "sampled": sampled}), subject, Path("runs/x"), as_json=False)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[1:4] == [
        ["set", "reward", "pass@1", "pass@2", "failed", "truncated", "length", "prompts", "samples"],
        ["greedy", "0.500", "50.0%", "-", "25.0%", "0.0%", "5.2", "4", "4"],
        ["sampled", "0.250", "25.0%", "37.5%", "0.0%", "12.5%", "12.0", "4", "8"],
    ]
    _print(EvalRecord(4, 2, skipped="busy"), subject, Path("runs/x"), as_json=False)
    assert capsys.readouterr().out.splitlines() == ["skipped: busy", "runs/x/evals.jsonl"]

"""`asyncrl resume`: what it refuses, each with one line and before anything is changed, and what may be changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from asyncrl.cli.main import main
from asyncrl.errors import EngineError
from asyncrl.options import resolve
from asyncrl.runtime.directory import RunDirectory
from asyncrl.runtime.resume import Resumption, saved_identity
from asyncrl.training.stored import RUN_FILE, choose, seal, steps_in, write_state
from whole_life import contents

DEMO = Path(__file__).parents[2] / "examples" / "demo.toml"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The directory of a run with checkpoints of steps 10 and 20."""
    config = resolve(DEMO, ["--runs-dir", str(tmp_path), "--name", "mine"])
    directory = RunDirectory(tmp_path, "mine")
    directory.create(config.to_toml())
    directory.lock.release()
    for step in (10, 20):
        place = directory.checkpoints / f"step-{step}"
        place.mkdir(parents=True)
        write_state(place, {"step": step, **saved_identity(config)}, {})
        seal(place)
    return directory.path


def rewrite(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change what the newest checkpoint says."""
    place = run / "checkpoints" / "step-20"
    content = json.loads((place / RUN_FILE).read_text())
    change(content)
    write_state(place, content, {})
    seal(place)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    """The one line with which the command is refused."""
    assert main(["resume", *map(str, arguments)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("asyncrl: error: ")
    return line.removeprefix("asyncrl: error: ")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--group-size 4", "--group-size: the run was started with group_size = 16, and 4 would make it another run"),
        ("--seed 7", "--seed: the run was started with seed = 0, and 7 would make it another run"),
        ("--task.max-digits 4", "--task.max-digits: the run was started with task.max_digits = "),
        ("--temperature 0.5", "--temperature: the run was started with temperature = 1.0, and 0.5 would make it another run"),
        ("--steps 19", "--steps: steps = 19, but the checkpoint has 20 already"),
        ("--from step-15", "--from: there is no checkpoint 'step-15' in "),
        ("--from", "--from: needs a checkpoint, such as step-20"),
        ("--name other", "--name: a run that goes on keeps its directory"),
        ("--runs-dir elsewhere", "--runs-dir: a run that goes on keeps its directory"),
        ("--setps 30", "--setps: there is no such option (did you mean --steps?)"),
        ("more", "asyncrl resume: wants one run"),
    ],
)
def test_what_does_not_fit_is_refused_naming_both_values(
    run: Path, capsys: pytest.CaptureFixture[str], flags: str, message: str
) -> None:
    before = contents(run)
    assert refusal(capsys, run, *flags.split()).startswith(message)
    assert contents(run) == before


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--temperature 0.5", "--temperature: the run was started with temperature = 1.0, and 0.5 would make it another run"),
        ("--task.max-digits 4", "--task.max-digits: the run was started with task.max_digits = "),
        ("--task jsonl", "task: the run was started with task = 'sort-digits', and 'jsonl' would make it another run"),
        ("--from step-20", "--from: there is no checkpoint 'step-20' in "),
    ],
)
def test_a_run_without_a_checkpoint_is_no_other_run_either(
    run: Path, capsys: pytest.CaptureFixture[str], flags: str, message: str
) -> None:
    shutil.rmtree(run / "checkpoints")
    assert refusal(capsys, run, *flags.split()).startswith(message)


def test_an_edited_configuration_is_refused_too(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (run / "config.toml").read_text()
    (run / "config.toml").write_text(text.replace("batch_size = 16", "batch_size = 8"))
    assert "config.toml: batch_size: the run was started with batch_size = 16, and 8 would" in refusal(capsys, run)


@pytest.mark.parametrize("slot", ["buffer", "scheduler"])
def test_a_checkpoint_of_another_plugin_is_refused_naming_it(run: Path, capsys: pytest.CaptureFixture[str], slot: str) -> None:
    other = {"buffer": "priority", "scheduler": "paced"}[slot]
    text = refusal(capsys, run, f"--{slot}", other)
    assert "the checkpoint step-20 was made with" in text
    assert f"this run has {slot} plugin {other!r} (asyncrl-plugin-{other} " in text


def test_a_checkpoint_of_another_version_is_refused_naming_both(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def older(content: dict[str, Any]) -> None:
        next(plugin for plugin in content["plugins"] if plugin["slot"] == "trainer")["version"] = "0.0.1"

    rewrite(run, older)
    text = refusal(capsys, run)
    assert "was made with trainer plugin 'fsdp' (asyncrl-plugin-fsdp 0.0.1), and this run has trainer plugin 'fsdp'" in text


def test_what_is_no_run_is_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(capsys, tmp_path / "nowhere").endswith("there is no such run (name its directory, such as runs/NAME)")
    assert "is no run: it has no config.toml" in refusal(capsys, tmp_path)
    assert "is a file, and a run is a directory" in refusal(capsys, run / "config.toml")
    assert "asyncrl resume: wants one run" in refusal(capsys)
    for step in (10, 20):
        (run / "checkpoints" / f"step-{step}" / RUN_FILE).unlink()
    assert "has no complete checkpoint; step-20: " in refusal(capsys, run)


def test_a_run_is_known_by_its_own_name_however_it_was_reached(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "latest").symlink_to(run)
    monkeypatch.chdir(run / "checkpoints")
    for reached in ("..", tmp_path / "latest"):
        assert f"there is no checkpoint '5' in {run / 'checkpoints'} " in refusal(capsys, reached, "--from", "5")


def test_a_run_that_is_alive_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    living = RunDirectory(run.parent, run.name, resumed=True)
    living.lock.take()
    assert "is still alive: process " in refusal(capsys, run)
    living.lock.release()


@pytest.mark.parametrize(
    ("how", "code"), [({"side_effect": EngineError("it does not start")}, 1), ({"return_value": "interrupted"}, 130)]
)
def test_a_run_that_ends_before_it_goes_on_is_as_it_was(
    run: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch, how: dict[str, Any], code: int
) -> None:
    """Its options and its summary, too: a run that was complete is complete."""
    shutil.rmtree(run / "checkpoints")
    (run / "summary.json").write_text(json.dumps({"outcome": "completed", "steps": 20}))
    before = contents(run)
    monkeypatch.setattr("asyncrl.runtime.run._Run._main", AsyncMock(**how))
    assert main(["resume", str(run), "--cache-dir", str(cache_dir), "--trainer-ranks", "99"]) == code
    assert contents(run) == before


@pytest.mark.parametrize("killed_at", ["shutil.rmtree", "os.truncate"])
def test_a_kill_while_steps_are_taken_back_leaves_no_checkpoint_whose_steps_are_gone(
    run: Path, monkeypatch: pytest.MonkeyPatch, killed_at: str
) -> None:
    rewrite(run, lambda content: content.update(rollout={"recorded": 0}))
    shutil.copytree(run / "checkpoints" / "step-20", run / "checkpoints" / "step-10", dirs_exist_ok=True)
    (run / "steps.jsonl").write_text("".join(json.dumps({"step": step}) + "\n" for step in range(1, 21)))
    directory = RunDirectory(run.parent, run.name, resumed=True)
    earlier = replace(choose(directory.checkpoints, "step-10"), step=10)
    with monkeypatch.context() as patch:
        patch.setattr(killed_at, Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            Resumption(directory, earlier).clear()
    (newest, *_), steps = steps_in(directory.checkpoints), directory.lines("steps.jsonl")
    assert steps[-1]["step"] >= newest, "going on once more finds all steps of the checkpoint that it takes"


@pytest.mark.parametrize(
    "flags",
    [
        "--num-engines 4 --trainer-ranks 2 --device cuda --base-port 30000 --bind 0.0.0.0",
        "--steps 500 --save-interval 5 --publish-interval 2 --eval-interval 50 --keep-checkpoints 1",
        "--publish-method broadcast --publish-mode in_place --request-timeout 10 --max-concurrent-samples 512",
        "--buffer.capacity-factor 4 --staleness.max-staleness 1 --trainer.learning-rate 1e-5 --engine.threads 2",
        "--loggers jsonl --observers ",
    ],
)
def test_where_and_how_fast_a_run_goes_may_change(run: Path, flags: str) -> None:
    directory = RunDirectory(run.parent, run.name, resumed=True)
    config = resolve(run / "config.toml", flags.split(" "))
    Resumption(directory, choose(directory.checkpoints)).check(config)


def test_the_help_says_what_the_command_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resume", "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: asyncrl resume RUN [--from step-N]")
    assert "--num-engines" in text

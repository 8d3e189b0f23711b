"""Every example, resolved into all its options and its servers' command lines, is as stored: no renamed option breaks one unseen."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncrl_sglang
import pytest
from asyncrl import EngineNeeds, EnginePlace
from asyncrl.cli.main import main
from asyncrl.evaluation.setup import check_options
from asyncrl.fit import check_fit
from asyncrl.host import Host
from asyncrl.network import INTERFACE_VARIABLES, key_for
from asyncrl.options import RunConfig, resolve
from asyncrl.plugins import build_host
from asyncrl.runtime import engine_actor
from asyncrl.runtime.engine_actor import EngineActor, EngineJob
from asyncrl.runtime.eval_engines import engine_job
from asyncrl.runtime.eval_plan import plan_eval_engines

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
STORED = Path(__file__).parent / "examples"
FILES = sorted(EXAMPLES.glob("*.toml"))
LAUNCHERS = sorted(EXAMPLES.glob("*.sh"))
PORT = 30000
PLACES = {"MODEL": "MODEL", "TRAIN": "TRAIN.jsonl", "TEST": "TEST.jsonl", "RAY": "HEAD:6379", "SGLANG_PYTHON": "PYTHON"}
"""What the launchers ask their caller for."""


@pytest.fixture(autouse=True)
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder with the examples, an interpreter that looks as if it had SGLang, and an `asyncrl` that says what it was called with."""
    (tmp_path / "examples").symlink_to(EXAMPLES)
    for place in ("PYTHON", ".venv-sglang/bin/python", "bin/asyncrl"):
        file = tmp_path / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text('#!/bin/sh\necho "CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES"\nprintf "%s\\n" "$@"\n')
        file.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for variable in ("CUDA_VISIBLE_DEVICES", *INTERFACE_VARIABLES):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(engine_actor, "_own_address", lambda: "NODE")
    monkeypatch.setattr(asyncrl_sglang, "check", lambda *arguments: None)  # asks SGLang itself for its flags
    yield


# What is run ----------------------------------------------------------------------------------------------------------------


def stated(file: Path) -> list[list[str]]:
    """The commands that the head of a file states."""
    head = file.read_text().partition("\n\n")[0]
    return [shlex.split(line.removeprefix("# ")) for line in head.splitlines() if line.startswith("# asyncrl ")]


def launched(launcher: Path, *flags: str) -> tuple[list[str], str]:
    """What a launcher calls `asyncrl` with, and the GPUs that it shows to it."""
    env = {**os.environ, **PLACES, "ASYNCRL_SGLANG_VENV": ".venv-sglang", "PYTHON": sys.executable}
    script = f"examples/{launcher.name}"
    done = subprocess.run(["bash", script, *flags], env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    gpus, *arguments = done.stdout.splitlines()
    return arguments, gpus.partition("=")[2]


def engine_lines(config: RunConfig) -> Iterator[str]:
    """Command lines of the servers that a run starts, made by what starts them."""
    device = "cuda" if config.core.device == "cuda" else "cpu"
    facts = replace(config.facts(), device=device)
    host = build_host(config.specs, facts)
    check_all(host, config)
    actor = EngineActor(config.specs, facts)
    api_key = "KEY" if key_for(config.core.bind) else ""
    for index in range(config.core.num_engines):
        seed = facts.seed + index
        place = EnginePlace(index, Path("MODEL"), config.core.bind, 0, device, facts.dtype, seed, Path("LOG"), api_key)
        yield from described(f"engine-{index}", actor, EngineJob(f"engine-{index}", place), host.one("engine_needs")())
    plan = plan_eval_engines(config, host, facts) if config.core.eval_interval else None
    for index in range(plan.engines.count if plan else 0):
        job = engine_job(plan, index, Path("MODEL"), config.core.bind, api_key, Path("LOG"))
        needs = plan.needs[index] if plan.needs else None
        yield from described(job.name, EngineActor([plan.spec], plan.facts), job, needs)


def check_all(host: Host, config: RunConfig) -> None:
    """The checks before a run that need neither model nor data."""
    check_fit(host)
    check_options(config.core, host.plugin("eval"))
    for slot in ("producer", "engine", "trainer", "eval", "staleness", "scheduler"):
        plugin = host.plugin(slot)
        if hasattr(plugin, "check_run"):
            plugin.check_run(plugin.run)


def described(name: str, actor: EngineActor, job: EngineJob, needs: EngineNeeds | None) -> Iterator[str]:
    spec = actor._spec(job, PORT)
    yield f"\n# {name}, {f'on {needs.gpus:g} GPUs' if needs else 'outside of the placement'}: {spec.url}\n"
    yield "".join(f"{key}={value} " for key, value in sorted(spec.env.items()))
    yield re.sub(r" (?=-{1,2}[a-z])", " \\\n  ", shlex.join(spec.argv)) + "\n"


def story(config: RunConfig, *, trains: bool = True) -> str:
    """All options and all servers, with the names of this machine and this moment left out."""
    text = config.to_toml() + ("".join(engine_lines(config)) if trains else "")
    for path, name in ((sys.executable, "INTERPRETER"), (str(Path.cwd()), "."), (str(ROOT), "REPOSITORY")):
        text = text.replace(path, name)
    return re.sub(r"(?<=--parent-pid )\d+", "PID", text)


# Tests ----------------------------------------------------------------------------------------------------------------------


def compare(name: str, text: str) -> None:
    stored = STORED / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        stored.parent.mkdir(exist_ok=True)
        stored.write_text(text)
    assert text == stored.read_text(), "after a change that was meant, UPDATE_GOLDEN=1 writes it anew"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_recipe_is_resolved_as_stored(file: Path) -> None:
    """Its first line is the command that runs it, and the rest of its head says what it shows."""
    first, *others = stated(file)
    assert file.read_text().startswith(f"# asyncrl {first[1]} examples/{file.name}")
    for command in others:
        check(command)
    config = resolve(None, first[2:])
    compare(file.stem, story(config, trains=first[1] == "train"))


def check(command: list[str]) -> None:
    """A simulation is run for two steps."""
    if command[1] == "simulate":
        assert main([*command[1:], "--simulate.steps", "2"]) == 0
    else:
        assert resolve(None, command[2:]).plugins


CASES: list[Any] = [(launcher, ()) for launcher in LAUNCHERS] + [(EXAMPLES / "random_stress.sh", ("--small",))]


@pytest.mark.parametrize(
    ("launcher", "flags"), CASES, ids=lambda value: value.stem if isinstance(value, Path) else "".join(value)
)
def test_a_launcher_runs_its_recipe(launcher: Path, flags: tuple[str, ...]) -> None:
    """It is stated in its first lines, passes on further flags, and what it runs is resolved as stored."""
    assert f"examples/{launcher.name}" in launcher.read_text().splitlines()[1]
    arguments, gpus = launched(launcher, *flags, "--steps", "7")
    verb, recipe, *rest = arguments
    assert (verb, Path(recipe).name, rest[-2:]) == ("train", f"{launcher.stem}.toml", ["--steps", "7"])
    config = resolve(None, arguments[1:])
    assert config.core.steps == 7
    head = f"# asyncrl {shlex.join(arguments)}\n" + (f"# CUDA_VISIBLE_DEVICES={gpus}\n" if gpus else "")
    compare(f"{launcher.stem}.sh{'.'.join(flag.removeprefix('--') for flag in ('', *flags))}", head + story(config))


@pytest.mark.parametrize(
    "launcher", [launcher for launcher in LAUNCHERS if "${MODEL:?" in launcher.read_text()], ids=lambda file: file.stem
)
def test_a_launcher_says_what_it_wants(launcher: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name not in PLACES}
    done = subprocess.run(["bash", f"examples/{launcher.name}"], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "MODEL: a Hugging Face directory" in done.stderr


def test_every_example_is_in_the_list_and_nothing_stored_is_left_over() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    for file in (*FILES, *LAUNCHERS):
        assert f"({file.name})" in listed, file.name
    launchers = {f"{launcher.name}{''.join(flag.replace('--', '.') for flag in flags)}" for launcher, flags in CASES}
    assert {file.stem for file in STORED.glob("*.txt")} == {file.stem for file in FILES} | launchers

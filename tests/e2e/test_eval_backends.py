"""Runs that evaluate on engines of their own: every due point has one record, and whatever happens to those engines, the run goes on."""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from asyncrl.testing.models import default_model
from asyncrl.training.publication import free_port
from own_engines import TorchServer

pytestmark = [pytest.mark.minutes, pytest.mark.timeout(1800)]

SOURCES = {"export": (), "checkpoints": ("--eval-snapshots", "checkpoints", "--save-interval", "2", "--keep-checkpoints", "1")}
DUE = [0, 2, 4]


@pytest.fixture
def staging(tmp_path: Path) -> Path:
    folder = tmp_path / "staging"
    folder.mkdir()
    return folder


@pytest.fixture
def server(tmp_path: Path, cache_dir: Path) -> Iterator[TorchServer]:
    """A server that nobody of the run started, with the demo's model."""
    (model,) = [path for path in cache_dir.glob("sort-digits-*") if path.is_dir()] or [default_model()]
    running = TorchServer(model, tmp_path).wait()
    yield running
    running.close()


def outcomes(run: Any) -> list[tuple[int, str]]:
    return [(record["step"], record["skipped"]) for record in run.evals()]


def check_records(run: Any, staging: Path) -> None:
    """One result for every due point, of its own version, and nothing left over."""
    assert run.wait() == 0, run.output
    records = run.evals()
    assert [(record["step"], record["skipped"]) for record in records] == [(step, "") for step in DUE], records
    for record in records:
        held_out = record["sets"]["held-out"]
        assert (record["version"], held_out["version_mean"], held_out["mixed_version"]) == (record["step"], record["step"], 0.0)
        assert held_out["failed"] == 0.0
    assert run.left_behind() == []
    assert list(staging.iterdir()) == []


@pytest.mark.parametrize("source", ["export", pytest.param("checkpoints", marks=pytest.mark.long)])
def test_the_fleet_evaluates_every_due_point(start: Any, staging: Path, source: str) -> None:
    flags = ("--eval", "fleet", "--eval.engine.max-running", "32", "--staging-dir", str(staging))
    check_records(start("--steps", "4", "--eval-interval", "2", *flags, *SOURCES[source]), staging)


@pytest.mark.parametrize("source", [pytest.param("checkpoints", marks=pytest.mark.long), "export"])
@pytest.mark.long
def test_a_launched_server_evaluates_every_due_point(start: Any, staging: Path, source: str) -> None:
    port = free_port("127.0.0.1")
    flags = ("--eval", "sglang", "--eval.port", str(port), "--eval.server-args", '["--max-running", "32"]')
    run = start("--steps", "4", "--eval-interval", "2", *flags, "--staging-dir", str(staging), *SOURCES[source])
    check_records(run, staging)
    assert f"http://127.0.0.1:{port}" in (run.directory / "logs" / "eval-engine-0.txt").read_text()


@pytest.mark.parametrize("source", [pytest.param("export", marks=pytest.mark.long), "checkpoints"])
@pytest.mark.long
def test_a_running_server_evaluates_every_due_point_and_outlives_the_run(
    start: Any, staging: Path, server: TorchServer, source: str
) -> None:
    flags = ("--eval", "sglang", "--eval.url", server.url, "--staging-dir", str(staging))
    check_records(start("--steps", "4", "--eval-interval", "2", *flags, *SOURCES[source]), staging)
    assert server.call("/model_info", None)["weight_version"] == "4"


@pytest.mark.long
def test_an_address_without_a_server_is_unhealthy_while_training_goes_on(start: Any, staging: Path) -> None:
    url = f"http://127.0.0.1:{free_port('127.0.0.1')}"
    flags = ("--eval", "sglang", "--eval.url", url, "--staging-dir", str(staging), "--engine.start-timeout", "30")
    run = start("--steps", "4", "--eval-interval", "2", *flags)
    assert run.wait() == 0, run.output
    assert outcomes(run) == [(step, "unhealthy") for step in DUE]
    assert run.summary["steps"] == 4
    assert all(url in record["detail"]["why"] for record in run.evals())
    assert run.left_behind() == []


@pytest.mark.long
def test_a_server_that_cannot_start_is_unhealthy_with_its_last_words(start: Any, staging: Path) -> None:
    flags = ("--eval", "sglang", "--eval.server-args", '["--no-such-flag"]', "--staging-dir", str(staging))
    run = start("--steps", "4", "--eval-interval", "2", *flags)
    assert run.wait() == 0, run.output
    assert outcomes(run) == [(step, "unhealthy") for step in DUE]
    assert all("unrecognized arguments: --no-such-flag" in record["detail"]["why"] for record in run.evals())
    assert run.left_behind() == []


@pytest.mark.long
def test_a_server_that_died_is_started_again_before_the_next_point(start: Any, staging: Path) -> None:
    """A point that is under way when it dies is unhealthy; whether there is one is up to the machine."""
    flags = ("--eval", "fleet", "--staging-dir", str(staging), "--eval-max-in-flight", "1")
    run = start("--steps", "8", "--eval-interval", "4", *flags)
    run.wait_until(run.evals, "the first point")
    assert kill(run, "asyncrl_torch.server", f"--port {urlsplit(eval_engine(run)).port} ")
    assert run.wait() == 0, run.output
    first, second, third = outcomes(run)
    assert (first, third) == ((0, ""), (8, ""))
    assert second in ((4, ""), (4, "unhealthy"))
    assert run.evals()[-1]["sets"]["held-out"]["version_mean"] == 8.0
    assert "eval-engine-0 is started again: its server ended or does not answer" in run.output
    assert run.left_behind() == []
    assert list(staging.iterdir()) == []


@pytest.mark.long
def test_an_evaluator_that_is_killed_costs_the_point_under_way_and_no_other(start: Any, staging: Path) -> None:
    """Generation is slowed down by one request at a time, so that a point is under way for seconds."""
    flags = ("--eval", "fleet", "--staging-dir", str(staging), "--eval.engine.max-running", "1")
    run = start("--steps", "6", "--eval-interval", "3", *flags)
    run.wait_until(lambda: eval_engine(run), "the engine that evaluates")
    run.wait_until(lambda: running_requests(eval_engine(run)), "a point under way")
    assert kill(run, "ray::EvalActor")
    assert run.wait() == 0, run.output
    skipped = [record["skipped"] for record in run.evals()]
    assert [record["step"] for record in run.evals()] == [0, 3, 6]
    assert skipped.count("crashed") == 1 and skipped.count("") == 2, run.evals()
    assert run.left_behind() == []


@pytest.mark.parametrize("flags", [("--eval", "fleet,sglang"), ("--eval", "fleet", "--eval", "sglang")])
def test_two_backends_are_refused(start: Any, flags: tuple[str, ...]) -> None:
    run = start(*flags)
    assert run.wait() == 2, run.output
    assert "--eval: eval takes one plugin, got fleet and sglang (choose one)" in run.output
    assert not run.directory.exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("fleet", "--eval.engine.threds", "2"), ("--eval.engine.threds:", "did you mean", "threads")),
        (("fleet", "--eval.engine.threads", "many"), ("--eval.engine.threads:", "got 'many', wants integer >= 1")),
        (("fleet", "--eval.engine.dtype", "int4"), ("--eval.engine.dtype:", "got 'int4'", "float32, bfloat16")),
        (("sglang", "--eval.url", "http://h:1", "--eval.port", "7"), ("--eval.url, --eval.port:", "leave out either")),
        (("sglang", "--eval.url", "h:1"), ("--eval.url:", "'h:1' is no address of a server")),
        (("sglang", "--eval.engine", "torhc"), ("--eval.engine:", "did you mean 'torch'?")),
    ],
)
def test_engines_that_cannot_be_are_refused_before_anything_starts(
    start: Any, flags: tuple[str, ...], words: tuple[str, ...]
) -> None:
    run = start("--eval", *flags)
    assert run.wait() == 2, run.output
    for word in words:
        assert word in run.output, run.output
    assert "Traceback" not in run.output
    assert not run.directory.exists()
    assert run.left_behind() == []


def eval_engine(run: Any) -> str:
    """The address of the run's engine that evaluates; '' as long as there is none."""
    file = run.directory / "logs" / "eval-engine-0.txt"
    found = re.findall(r"serving .* at (http://\S+)", file.read_text()) if file.exists() else []
    return found[-1] if found else ""


def running_requests(url: str) -> int:
    with urllib.request.urlopen(f"{url}/v1/loads", timeout=30) as answer:
        return int(json.loads(answer.read())["aggregate"]["total_running_reqs"])


def kill(run: Any, *words: str) -> int:
    """Kill the run's processes whose command line has all of `words`; returns how many there were."""
    killed = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            line = (entry / "cmdline").read_bytes().replace(bytes(1), b" ").decode()
            mine = run.mark.encode() in (entry / "environ").read_bytes()
        except OSError:
            continue
        if mine and all(word in line for word in words):
            os.kill(int(entry.name), signal.SIGKILL)
            killed += 1
    return killed

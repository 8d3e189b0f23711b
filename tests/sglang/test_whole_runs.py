"""Whole runs on real servers that die and hang: the run's own supervisor brings them back, or says why it can't."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fake_distributions import install
from live import PATIENT, Run, begin, processes_with
from servers import descendants, interpreter
from whole_life import OBSERVED, check_whole, observing

EXAMPLE = Path(__file__).parents[2] / "examples" / "sglang_cpu.toml"
RUN_SECONDS = 1500.0
SAME = 1e-3
"""Log-probabilities of trainer and server differ by less, in nats, where a token was made by the weights that it is said to be from."""
HELD = ("--eval", "held", "--eval-interval", "4", "--eval-max-in-flight", "1", "--no-eval-before-training")
"""With these flags the run waits at step 8 until the test lets the evaluation of step 4 through, however slowly a server comes back."""


@pytest.fixture
def start(tmp_path: Path, started: list[Any]) -> Iterator[Callable[..., Run]]:
    """Return a function that starts `asyncrl train` on the example with more flags."""
    for server in started:
        server.end()  # there are never more than two servers
    runs: list[Run] = []

    def begun(*flags: str, python: str = "", env: dict[str, str] | None = None) -> Run:
        where = ("--runs-dir", str(tmp_path / "runs"), "--name", "run", "--engine.python", python or interpreter())
        directory = tmp_path / "runs" / "run"
        arguments = (str(EXAMPLE), *PATIENT, *where, *flags)
        runs.append(begin("train", *arguments, directory=directory, cwd=tmp_path, env=env, patience=RUN_SECONDS))
        return runs[-1]

    yield begun
    for run in runs:
        run.clear()


@dataclass
class Owned:
    """A server that a run has started and watches."""

    run: Run
    name: str

    def send(self, number: int) -> None:
        """Send a signal to every process of the server, as when a machine goes or stands still; not to the one that owns it."""
        owner, _ = self._owner()
        for pid in [pid for pid in descendants(owner) if pid != owner]:
            os.kill(pid, number)

    def generates(self) -> bool:
        """Whether requests are in their middle."""
        command = self._owner()[1]
        port = command[command.index(b"--port") + 1].decode()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/loads", timeout=60) as answer:
            return any(load["num_running_reqs"] > 0 for load in json.load(answer)["loads"])

    def calls(self, life: int) -> list[str]:
        """The requests that were answered in one of its lives, 0 being the first, in order."""
        _, *lives = self.log().split("Uvicorn running on ")
        return (
            [line.split('"')[1].split()[1] for line in lives[life].splitlines() if '"POST /' in line] if life < len(lives) else []
        )

    def log(self) -> str:
        return (self.run.directory / "logs" / f"{self.name}.txt").read_text(errors="replace")

    def _owner(self) -> tuple[int, list[bytes]]:
        log = f"/logs/{self.name}.txt".encode()
        (found,) = [
            (pid, words)
            for pid, command in processes_with(self.run.mark)
            if b"asyncrl.runtime.child" in (words := command.split(bytes(1))) and any(word.endswith(log) for word in words)
        ]
        return found


def held(folder: Path) -> dict[str, str]:
    """Environment of runs whose prompts can be counted, and whose evaluations wait for the file `go`."""
    install(folder, "held", {"asyncrl.evals": {"held": "held_eval_plugin:Held"}})
    return observing(folder)


@pytest.mark.long
@pytest.mark.parametrize(("number", "method"), [(signal.SIGKILL, "broadcast"), (signal.SIGSTOP, "disk")], ids=["killed", "hung"])
def test_one_of_two_servers_comes_back_and_the_run_ends_whole(start, tmp_path: Path, number: int, method: str) -> None:
    """Its requests are answered by the other; it gets none before the present weights have reached it."""
    steps = 12
    way = ("--publish-method", method, "--engine-hang-timeout", "60", "--max-engine-restarts", "9")
    flags = ("--num-engines", "2", "--steps", str(steps), "--save-interval", "4", *way, *HELD, *OBSERVED)
    run = start(*flags, env=held(tmp_path / "site"))
    run.wait_for_step(2)
    victim = Owned(run, "engine-1")
    run.wait_until(victim.generates, "requests in their middle", every=0.01)
    victim.send(number)
    run.wait_until(lambda: any("/update_weights" in call for call in victim.calls(1)), "weights in the new server")
    (run.directory / "go").touch()
    assert run.wait() == 0, run.output

    check_whole(run, steps, evals=(4, 8, 12))
    values = [line["values"] for axis in ("train_step", "wall_seconds") for line in run.metrics(axis)]
    assert sum(one.get("engines/restarts/engine-1", 0) for one in values) >= 1
    assert sum(one.get("engines/retries", 0) for one in values) >= 1, "nothing was sent again"
    for quantity in ("running", "waiting", "tokens_per_second"):
        for engine in ("engine-0", "engine-1", "all"):
            assert any(f"engines/{quantity}/{engine}" in one for one in values)
    calls = victim.calls(1)
    assert calls.index("/generate") > min(index for index, call in enumerate(calls) if "/update_weights" in call)
    assert 0.0 < max(one.get("trainer/fsdp/largest_logprob_difference_by_age/0", 0.0) for one in values) < SAME
    assert "Traceback" not in run.output


@pytest.mark.long
def test_a_server_of_its_own_evaluates_every_due_point(start) -> None:
    """One server generates for training; the evaluation launches another and brings it to each checkpoint."""
    run = start("--steps", "4", "--eval", "sglang", "--eval-interval", "2", "--eval-before-training")
    assert run.wait() == 0, run.output
    assert [(record["step"], record["skipped"], record["version"]) for record in run.evals()] == [
        (0, "", 0),
        (2, "", 2),
        (4, "", 4),
    ]
    for record in run.evals():
        held_out = record["sets"]["held-out"]
        assert (held_out["version_mean"], held_out["mixed_version"], held_out["failed"]) == (record["step"], 0.0, 0.0)
    assert "/generate" in (run.directory / "logs" / "eval-engine-0.txt").read_text(errors="replace")
    assert run.left_behind() == []


@pytest.mark.long
def test_a_server_that_cannot_be_started_again_ends_the_run_with_its_own_words(start, tmp_path: Path) -> None:
    """The disk with its model is gone when it is to come back."""
    gone, python = tmp_path / "gone", tmp_path / "python"
    python.write_text(f'#!/bin/sh\n[ -e {gone} ] && set -- "$@" --model-path /no/disk\nexec {interpreter()} "$@"\n')
    python.chmod(0o755)
    run = start("--steps", "100000", "--eval-interval", "0", "--max-engine-restarts", "1", python=str(python))
    run.wait_for_step(1)
    gone.touch()
    Owned(run, "engine-0").send(signal.SIGKILL)
    assert run.wait() == 1, run.output
    error = run.output[run.output.index("asyncrl: error:") :].strip()
    assert (
        "no engine is left, and each was started again 1 times (max_engine_restarts): engine-0: the engine's server ended"
        in error
    )
    assert "'/no/disk'" in error and "logs/engine-0.txt" in error, "it lacks the server's own words, or where there are more"
    assert "\n" not in error and "Traceback" not in run.output
    assert run.summary["outcome"] == "failed"
    assert run.left_behind() == []

"""Where a run listens: on loopback, and elsewhere only if it was told so; then nobody is served who has not the run's key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from listeners import family, is_local, listeners

SMALL = ("--steps", "3", "--batch-size", "4", "--group-size", "4", "--eval-interval", "2", "--task.num-eval", "4")
OF_TORCH = "asyncrl_torch.server"

pytestmark = [pytest.mark.slow, pytest.mark.minutes]


def watched(run: Any) -> dict[tuple[str, int], str]:
    """Everything the run listened on before its last step."""
    seen: dict[tuple[str, int], str] = {}

    def trained() -> bool:
        seen.update(listeners(run.process.pid))
        return bool(run.metrics("eval_step"))

    run.wait_until(trained, "an evaluation")
    return seen


@pytest.mark.long
def test_a_run_listens_on_loopback_alone(start: Any) -> None:
    """Two ranks, broadcast, engines of two kinds: Ray, gloo, the ranks' stores and the servers all have their ports."""
    run = start(*SMALL, "--trainer-ranks", "2", "--publish-method", "broadcast", "--eval", "fleet")
    seen = watched(run)
    assert run.wait() == 0, run.output
    titles = " ".join(seen.values())
    for part in ("gcs_server", "raylet", "ray::RuntimeEnv", "ray::TrainerActor", "ray::RolloutActor", "ray::EvalActor", OF_TORCH):
        assert part in titles, f"{part} was not seen to listen: {seen}"
    assert {where: title for where, title in seen.items() if not is_local(where[0])} == {}


@pytest.mark.long
def test_a_run_that_others_may_reach_shows_its_key_nowhere(start: Any) -> None:
    """Engines for rollout and for evaluation that listen on every address, and everything that logs."""
    loggers = ("--loggers", "console,jsonl,wandb,tensorboard", "--loggers.wandb.mode", "offline")
    run = start(*SMALL, *loggers, "--publish-method", "broadcast", "--eval", "fleet", "--bind", "0.0.0.0", "--trace-hooks")
    keys, commands = set(), []

    def trained() -> bool:
        for process in family(run.process.pid):
            keys.update(key_in(process.pid))
            commands.append(command_of(process.pid))
        return bool(run.metrics("eval_step"))

    run.wait_until(trained, "an evaluation")
    assert run.wait() == 0, run.output
    (key,) = keys
    assert [record["skipped"] for record in run.evals()] == [""] * len(run.evals())
    assert any(OF_TORCH.encode() in command for command in commands) and key not in b"".join(commands)
    assert key not in run.output.encode()
    written = [path for path in run.directory.rglob("*") if path.is_file()]
    assert {".wandb", ".toml", ".jsonl", ".txt"} <= {path.suffix for path in written}
    assert [path for path in written if key in path.read_bytes()] == []


def key_in(pid: int) -> list[bytes]:
    """The key that a process was given by its environment."""
    try:
        variables = (Path("/proc") / str(pid) / "environ").read_bytes().split(bytes(1))
    except OSError:
        return []
    return [value for name, _, value in (one.partition(b"=") for one in variables) if name == b"ASYNCRL_ENGINE_KEY"]


def command_of(pid: int) -> bytes:
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_bytes()
    except OSError:
        return b""

"""What a run survives on its way: what dies while it trains, and while it goes back."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from asyncrl.errors import ActorLost, AsyncrlError, TrainerLost
from asyncrl.options import resolve
from asyncrl.runtime.directory import RunDirectory
from asyncrl.runtime.run import _Run

DEMO = Path(__file__).parents[2] / "examples" / "demo.toml"
RANK, ROLLOUT = TrainerLost("trainer rank 0 died"), ActorLost("the rollout actor died")


async def train(folder: Path, monkeypatch: pytest.MonkeyPatch, *attempts: tuple[bool, AsyncrlError | None]) -> int:
    """Train in attempts, each of which comes to training or does not, and then ends so; return how many there were."""
    run = _Run(resolve(DEMO, ["--max-restarts", "9", "--loggers", ""]), RunDirectory(folder, "one"), None)
    interrupts: Any = SimpleNamespace(loop_running=False)
    left = list(attempts)

    async def attempt(*_: Any) -> None:
        interrupts.loop_running, error = left.pop(0)
        if error:
            raise error

    monkeypatch.setattr("asyncrl.runtime.run.start_base", AsyncMock())
    monkeypatch.setattr(run, "_attempt", attempt)
    monkeypatch.setattr(run, "_eval_plan", None, raising=False)
    with contextlib.suppress(TrainerLost, ActorLost):
        await run._train(interrupts)
    return len(attempts) - len(left)


@pytest.mark.parametrize("meanwhile", [RANK, ROLLOUT])
async def test_what_dies_while_a_run_goes_back_has_it_go_back_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: AsyncrlError
) -> None:
    assert await train(tmp_path, monkeypatch, (True, RANK), (False, meanwhile), (False, meanwhile), (True, None)) == 4


@pytest.mark.parametrize("first", [(False, RANK), (False, ROLLOUT), (True, ROLLOUT)])
async def test_what_dies_while_a_run_starts_ends_it_and_so_does_an_actor_that_was_not_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: tuple[bool, AsyncrlError]
) -> None:
    assert await train(tmp_path, monkeypatch, first, (True, None)) == 1

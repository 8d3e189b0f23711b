"""Whatever a rank fails with, the one that died or hangs is named; an exception while all are there is the plugin's own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from asyncrl.errors import CheckpointError, PluginFailed, TrainerLost
from asyncrl.runtime.trainer_group import TrainerGroup
from asyncrl.simulation.clock import run_virtual
from ray.exceptions import ActorDiedError, RayTaskError

TIMEOUT = 100.0
PLUGIN = PluginFailed("trainer plugin 'fsdp' failed in train_batch: RuntimeError: connection closed by peer")


class Method:
    """A method of a rank as Ray offers it."""

    def __init__(self, rank: Rank, name: str) -> None:
        self._rank, self._name = rank, name

    def options(self, **_: Any) -> Method:
        return self

    async def remote(self, *_: Any) -> Any:
        rank = self._rank
        if self._name == "here" and not rank.dead:
            return await asyncio.sleep(1e9 if rank.frozen else 0.01)
        if rank.dead:
            await asyncio.sleep(rank.noticed_after)
            raise ActorDiedError()
        if rank.frozen or rank.busy:
            await asyncio.sleep(1e9)
        if rank.raises is not None:
            raise RayTaskError("train", "traceback", rank.raises)
        return rank.place if self._name == "rendezvous" else self._name


class Rank:
    """An actor that answers each call with the call's name.

    `place`: where it is reached, and a port that is free there. `noticed_after`: seconds until Ray says that it is dead. `busy`: it
    answers nothing but whether it is there.
    """

    place = ("10.0.0.2", 4711)

    def __init__(
        self,
        *,
        dead: bool = False,
        frozen: bool = False,
        busy: bool = False,
        raises: Exception | None = None,
        noticed_after: float = 0.5,
    ) -> None:
        self.dead, self.frozen, self.busy, self.raises, self.noticed_after = dead, frozen, busy, raises, noticed_after

    def __getattr__(self, name: str) -> Method:
        return Method(self, name)


def group(*ranks: Rank) -> TrainerGroup:
    return TrainerGroup(ranks.__getitem__, len(ranks), bind="0.0.0.0", timeout=TIMEOUT)


def exported(*ranks: Rank) -> None:
    run_virtual(group(*ranks).export(Path("nowhere")))


def test_a_dead_rank_is_named() -> None:
    with pytest.raises(TrainerLost, match=r"trainer rank 1: its process died \(killed, or out of memory\)"):
        exported(Rank(busy=True), Rank(dead=True))


def test_what_another_rank_raises_because_of_the_death_does_not_hide_it() -> None:
    with pytest.raises(TrainerLost, match="trainer rank 1: its process died"):
        exported(Rank(raises=PLUGIN), Rank(dead=True, noticed_after=5.0), Rank(busy=True))


def test_a_rank_that_stands_still_is_named_and_not_the_one_that_waits_for_it() -> None:
    with pytest.raises(TrainerLost, match=r"^trainer rank 1 hangs: no answer for 15 s$"):
        exported(Rank(busy=True), Rank(frozen=True))


def test_a_rank_that_stands_still_is_named_when_another_gave_up_waiting() -> None:
    with pytest.raises(TrainerLost, match="^trainer rank 1 hangs"):
        exported(Rank(raises=PLUGIN), Rank(frozen=True))


def test_a_call_that_never_ends_is_a_loss_and_says_which_option_may_be_too_small() -> None:
    with pytest.raises(TrainerLost, match="trainer rank [01] gave no answer within 100 s") as caught:
        exported(Rank(busy=True), Rank(busy=True))
    assert "trainer_timeout" in caught.value.remedy


@pytest.mark.parametrize("error", [PLUGIN, CheckpointError("the disk is full")])
def test_an_exception_while_all_ranks_are_there_is_raised_as_it_is(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)[:20]):
        exported(Rank(raises=error), Rank(busy=True))


def test_nothing_is_lost_while_all_are_there_however_busy() -> None:
    assert run_virtual(group(Rank(busy=True), Rank()).lost()) == ""


def test_where_engines_meet_rank_0_is_said_by_its_own_node() -> None:
    trainer = group(Rank(), Rank(busy=True))
    assert (run_virtual(trainer.address()), run_virtual(trainer.free_port())) == ("10.0.0.2", 4711)

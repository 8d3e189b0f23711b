"""All trainer ranks as one trainer: every collective call goes to every rank at once.

A rank that dies or hangs makes the others fail or wait, so whatever a call ends with, who is gone is asked before it is believed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ray

from asyncrl.authoring import RunFacts
from asyncrl.errors import ActorLost, AsyncrlError, DeadlineExceeded, TrainerLost
from asyncrl.plugins import PluginSpec
from asyncrl.runtime.cluster import Cluster, ask, placed
from asyncrl.runtime.trainer_actor import TrainerActor
from asyncrl.training.interfaces import Exported, StepReport, TrainerFacts, TrainerPlace, WeightGroup, WeightManifest

CLOSE_SECONDS = 20.0
LOOK_SECONDS = 15.0


def rank_maker(cluster: Cluster, first_bundle: int, specs: Sequence[PluginSpec], facts: RunFacts) -> Callable[[int], Any]:
    """Return what makes the actor of a rank; rank i sits in bundle `first_bundle + i`."""
    remote = ray.remote(concurrency_groups={"control": 1, "writing": 1, "look": 1})(TrainerActor)
    return lambda rank: remote.options(**cluster.place(first_bundle + rank)).remote(list(specs), facts)


class TrainerGroup:
    """Satisfies the training loop's `Trainer` and the publisher's and checkpoints' views of it.

    Args:
        make: returns a new actor for a rank (see `rank_maker`).
        ranks: how many there are.
        bind: address at which rank 0 listens for the others.
        timeout: seconds that a call may take, and a rank may wait for the others, before the trainer counts as hanging.

    Raises:
        TrainerLost: from every call, when a rank died or hangs; names it. Any other error is what a rank raised, all being there.
    """

    def __init__(self, make: Callable[[int], Any], ranks: int, *, bind: str, timeout: float) -> None:
        self._make = make
        self._ranks = [make(rank) for rank in range(ranks)]
        self._bind = bind
        self._timeout = timeout
        self._broken = self._saving = False
        self.busy_seconds = 0.0

    async def open(self, model: Path, facts: RunFacts, *, timeout: float) -> TrainerFacts:
        """Form the process group and load the model on every rank, within `timeout` seconds."""
        self._ranks = await self._together(
            (placed(actor, partial(self._make, rank), _name(rank), timeout) for rank, actor in enumerate(self._ranks)),
            "start_timeout",
        )
        address, port = (await self._gather([self._ranks[0].rendezvous.remote(self._bind)], timeout, "start_timeout"))[0]
        places = [
            TrainerPlace(
                rank=rank,
                world_size=len(self._ranks),
                local_rank=rank,
                master_address=address,
                master_port=port,
                device=facts.device,
                model=model,
                publish_dtype=facts.dtype,
                steps=facts.steps,
                seed=facts.seed,
                timeout=self._timeout,
            )
            for rank in range(len(self._ranks))
        ]
        opened = [rank.open.remote(place) for rank, place in zip(self._ranks, places, strict=True)]
        facts_of_rank_0: TrainerFacts = (await self._gather(opened, timeout, "start_timeout"))[0]
        return facts_of_rank_0

    async def address(self) -> str:
        """Return the address at which engines reach rank 0."""
        answer: tuple[str, int] = await self._first("rendezvous", self._bind)
        return answer[0]

    async def free_port(self) -> int:
        """Return a port that is free at that address, on rank 0's node."""
        answer: tuple[str, int] = await self._first("rendezvous", self._bind)
        return answer[1]

    async def train(self, batch: Any) -> StepReport:
        """`batch` is an object reference; every rank reads the same copy in shared memory."""
        report: StepReport = await self._every("train", batch)
        self.busy_seconds += report.busy_seconds
        return report

    async def export(self, directory: Path) -> Exported:
        exported: Exported = await self._every("export", directory)
        return exported

    async def manifest(self) -> WeightManifest:
        manifest: WeightManifest = await self._every("manifest")
        return manifest

    async def join(self, group: WeightGroup) -> None:
        await self._first("join", group)

    async def broadcast(self, index: int) -> int:
        sent: int = await self._every("broadcast", index)
        return sent

    async def leave(self) -> None:
        await ask(self._ranks[0].leave.options(concurrency_group="control").remote(), "trainer rank 0")

    async def capture(self) -> None:
        """Copy what a checkpoint needs; training waits for it."""
        await self._every("capture")

    async def save(self, directory: Path, model: Path) -> Exported:
        """Write what was captured, beside all other calls."""
        self._saving = True
        calls = [rank.save.options(concurrency_group="writing").remote(directory, model) for rank in self._ranks]
        exported: Exported = (await self._gather(calls, self._timeout, told="a checkpoint"))[0]  # whoever waits for it says so
        self._saving = False
        return exported

    async def load(self, directory: Path) -> str:
        """Read what `save` wrote, at this number of ranks, and return the digest of the weights."""
        await self._every("load", directory)
        return (await self.manifest()).digest

    async def lost(self) -> str:
        """Return which ranks are dead, and of what, or do not answer; '' when all are there. Takes some seconds at most."""
        looks = [rank.here.options(concurrency_group="look").remote() for rank in self._ranks]
        answers = await asyncio.gather(
            *(ask(look, _name(rank), LOOK_SECONDS, told=f"a sign of life from {_name(rank)}") for rank, look in enumerate(looks)),
            return_exceptions=True,
        )
        dead = [answer.message for answer in answers if isinstance(answer, ActorLost)]
        hung = [
            f"{_name(rank)} hangs: no answer for {LOOK_SECONDS:g} s"
            for rank, answer in enumerate(answers)
            if isinstance(answer, DeadlineExceeded)
        ]
        self._broken = self._broken or bool(dead or hung)
        return "; ".join(dead + hung)

    async def close(self) -> None:
        """Leave the process groups and end the ranks; those that do not answer in time are killed, and all if one is gone or is writing."""
        try:
            if not (self._broken or self._saving):
                closing = (ask(rank.close.remote(), _name(number), CLOSE_SECONDS) for number, rank in enumerate(self._ranks))
                await asyncio.gather(*closing)
        finally:
            for rank in self._ranks:
                ray.kill(rank)

    async def _every(self, call: str, *arguments: Any) -> Any:
        """Call every rank, and return what rank 0 answers."""
        return (await self._gather([getattr(rank, call).remote(*arguments) for rank in self._ranks], self._timeout))[0]

    async def _first(self, call: str, *arguments: Any) -> Any:
        """Call rank 0 alone."""
        return (await self._gather([getattr(self._ranks[0], call).remote(*arguments)], self._timeout))[0]

    async def _gather(
        self, references: Sequence[Any], timeout: float, option: str = "trainer_timeout", *, told: str = ""
    ) -> list[Any]:
        """Wait for an answer of every rank.

        Args:
            option: sets `timeout`.
            told: as in `ask`.
        """
        return await self._together(
            (
                ask(reference, _name(rank), timeout, told=told and f"{told} from {_name(rank)}")
                for rank, reference in enumerate(references)
            ),
            option,
        )

    async def _together(self, waits: Iterable[Awaitable[Any]], option: str) -> list[Any]:
        """Wait for every rank; the first failure is raised at once, for the others may wait for the failed one."""
        tasks = [asyncio.ensure_future(wait) for wait in waits]
        try:
            return await asyncio.gather(*tasks)
        except ActorLost as error:
            self._broken = True
            raise TrainerLost(error.message) from error
        except AsyncrlError as error:
            if lost := await self.lost():
                raise TrainerLost(lost) from error
            if isinstance(error, DeadlineExceeded):
                self._broken = True
                raise TrainerLost(error.message, remedy=f"if it needs longer, raise {option}") from error
            raise
        finally:
            for task in tasks:
                task.cancel()


def _name(rank: int) -> str:
    return f"trainer rank {rank}"

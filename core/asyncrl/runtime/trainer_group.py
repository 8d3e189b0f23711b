"""All trainer ranks as one trainer: every collective call goes to every rank at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray

from asyncrl.authoring import RunFacts
from asyncrl.plugins import PluginSpec
from asyncrl.runtime.cluster import Cluster, ask
from asyncrl.runtime.trainer_actor import TrainerActor
from asyncrl.training.interfaces import Exported, StepReport, TrainerFacts, TrainerPlace, WeightGroup, WeightManifest

CLOSE_SECONDS = 20.0


class TrainerGroup:
    """Satisfies the training loop's `Trainer` and the publisher's and checkpoints' views of it."""

    def __init__(self, cluster: Cluster, first_bundle: int, specs: Sequence[PluginSpec], facts: RunFacts) -> None:
        remote = ray.remote(concurrency_groups={"control": 1, "writing": 1})(TrainerActor)
        self._ranks = [
            remote.options(**cluster.place(first_bundle + rank)).remote(list(specs), facts) for rank in range(facts.trainer_ranks)
        ]
        self._saving = False
        self._bind = cluster.bind
        self.busy_seconds = 0.0

    async def open(self, model: Path, facts: RunFacts, *, timeout: float) -> TrainerFacts:
        """Form the process group and load the model on every rank; `timeout` also bounds each later collective."""
        address, port = await ask(self._ranks[0].rendezvous.remote(self._bind), "trainer rank 0", timeout)
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
                timeout=timeout,
            )
            for rank in range(len(self._ranks))
        ]
        opened = [rank.open.remote(place) for rank, place in zip(self._ranks, places, strict=True)]
        facts_of_rank_0: TrainerFacts = (await self._gather(opened, timeout))[0]
        return facts_of_rank_0

    async def address(self) -> str:
        """Return the address at which engines reach rank 0."""
        answer: tuple[str, int] = await ask(self._ranks[0].rendezvous.remote(self._bind), "trainer rank 0")
        return answer[0]

    async def train(self, batch: Any) -> StepReport:
        """`batch` is an object reference; every rank reads the same copy in shared memory."""
        report: StepReport = (await self._gather([rank.train.remote(batch) for rank in self._ranks]))[0]
        self.busy_seconds += report.busy_seconds
        return report

    async def export(self, directory: Path) -> Exported:
        exported: Exported = (await self._gather([rank.export.remote(directory) for rank in self._ranks]))[0]
        return exported

    async def manifest(self) -> WeightManifest:
        manifest: WeightManifest = (await self._gather([rank.manifest.remote() for rank in self._ranks]))[0]
        return manifest

    async def join(self, group: WeightGroup) -> None:
        await ask(self._ranks[0].join.remote(group), "trainer rank 0")

    async def broadcast(self, index: int) -> int:
        sent: int = (await self._gather([rank.broadcast.remote(index) for rank in self._ranks]))[0]
        return sent

    async def leave(self) -> None:
        await ask(self._ranks[0].leave.options(concurrency_group="control").remote(), "trainer rank 0")

    async def capture(self) -> None:
        """Copy what a checkpoint needs; training waits for it."""
        await self._gather([rank.capture.remote() for rank in self._ranks])

    async def save(self, directory: Path, model: Path) -> Exported:
        """Write what was captured, beside all other calls."""
        self._saving = True
        calls = [rank.save.options(concurrency_group="writing").remote(directory, model) for rank in self._ranks]
        exported: Exported = (await self._gather(calls, told="a checkpoint"))[0]  # whoever waits for it says so
        self._saving = False
        return exported

    async def load(self, directory: Path) -> str:
        """Read what `save` wrote, at this number of ranks, and return the digest of the weights."""
        await self._gather([rank.load.remote(directory) for rank in self._ranks])
        return (await self.manifest()).digest

    async def close(self) -> None:
        """Leave the process groups and end the ranks; those that do not answer in time, or are still writing, are killed."""
        try:
            if not self._saving:
                await self._gather([rank.close.remote() for rank in self._ranks], CLOSE_SECONDS)
        finally:
            for rank in self._ranks:
                ray.kill(rank)

    async def _gather(self, references: Sequence[Any], timeout: float | None = None, *, told: str = "") -> list[Any]:
        """Wait for every rank; the first failure is raised at once, for the others may wait for the failed one. `told` as in `ask`."""
        tasks = [
            asyncio.ensure_future(
                ask(reference, f"trainer rank {rank}", timeout, told=told and f"{told} from trainer rank {rank}")
            )
            for rank, reference in enumerate(references)
        ]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

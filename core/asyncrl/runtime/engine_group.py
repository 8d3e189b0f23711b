"""The engine actors: started side by side, stopped side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import ray

from asyncrl.authoring import RunFacts
from asyncrl.plugins import PluginSpec
from asyncrl.rollout.engine import EnginePlace
from asyncrl.runtime.cluster import Cluster, ask
from asyncrl.runtime.engine_actor import EngineActor, EngineAddress, EngineJob

STOP_SECONDS = 15.0


class EngineGroup:
    """All rollout engines of a run; engine i sits in bundle `first_bundle + i`."""

    def __init__(self, cluster: Cluster, first_bundle: int, specs: Sequence[PluginSpec], facts: RunFacts) -> None:
        self._facts = facts
        remote = ray.remote(EngineActor)
        self._actors = [
            remote.options(**cluster.place(first_bundle + index)).remote(list(specs), facts) for index in range(facts.num_engines)
        ]

    async def start(self, model: Path, *, host: str, base_port: int, log_dir: Path, timeout: float) -> list[EngineAddress]:
        """Start every server and wait until all are healthy."""
        places = [
            EnginePlace(
                index=index,
                model=model,
                host=host,
                port=base_port + index if base_port else 0,
                device=self._facts.device,
                dtype=self._facts.dtype,
                seed=self._facts.seed + index,
                log_file=log_dir / f"engine-{index}.txt",
            )
            for index in range(len(self._actors))
        ]
        started = [
            ask(actor.start.remote(EngineJob(f"engine-{place.index}", place)), f"engine {place.index}", timeout)
            for actor, place in zip(self._actors, places, strict=True)
        ]
        return list(await asyncio.gather(*started))

    async def log_tails(self) -> str:
        """Return the last log lines of each engine whose server has ended."""
        tails = []
        for index, actor in enumerate(self._actors):
            if not await ask(actor.running.remote(), f"engine {index}", STOP_SECONDS):
                tails.append(f"engine-{index} ended:\n" + await ask(actor.log_tail.remote(), f"engine {index}", STOP_SECONDS))
        return "\n".join(tails)

    async def stop(self) -> None:
        """End every server; actors that do not answer in time are killed, and their servers end with them."""
        stops = [ask(actor.stop.remote(), f"engine {index}", STOP_SECONDS) for index, actor in enumerate(self._actors)]
        try:
            await asyncio.gather(*stops, return_exceptions=True)
        finally:
            for actor in self._actors:
                ray.kill(actor)

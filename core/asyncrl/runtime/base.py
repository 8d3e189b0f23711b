"""What a run stands on, and keeps when it goes back to a checkpoint: the Ray cluster, the engines, whose servers may take minutes to load
a model, and what clears away whatever is left of them."""

from __future__ import annotations

import contextlib
import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path

from asyncrl.authoring import RunFacts
from asyncrl.evaluation.snapshots import staging_directory
from asyncrl.host import Host
from asyncrl.network import key_for
from asyncrl.options import RunConfig
from asyncrl.rollout.engine import EngineNeeds
from asyncrl.run_options import RunOptions
from asyncrl.runtime.cluster import Cluster
from asyncrl.runtime.directory import RunDirectory
from asyncrl.runtime.engine_group import EngineGroup
from asyncrl.runtime.eval_plan import EvalEnginePlan
from asyncrl.runtime.interrupt import Interrupts
from asyncrl.runtime.janitor import Janitor
from asyncrl.runtime.restarts import Restarts
from asyncrl.runtime.resume import Resumption
from asyncrl.runtime.summary import Totals
from asyncrl.training.loop import Stop


@dataclass(frozen=True)
class Job:
    """A run that was checked: with what it is started, from the beginning or, `resumed`, from a checkpoint.

    Attributes:
        restarts: how often what died was made anew, in all.
        started: when the run would have begun if it had never been interrupted; seconds of the monotonic clock.
        again: whether this command has trained before, and lost its trainer.
    """

    config: RunConfig
    facts: RunFacts
    host: Host
    directory: RunDirectory
    resumed: Resumption | None
    model: Path
    vocab_size: int
    eval_plan: EvalEnginePlan | None
    totals: Totals
    stop: Stop
    restarts: Restarts
    started: float
    again: bool = False

    @property
    def begun(self) -> bool:
        """Whether the run's directory has what an earlier part of the run wrote."""
        return self.again or self.directory.resumed

    @property
    def core(self) -> RunOptions:
        return self.config.core

    def goes_on(self, host: Host, resumed: Resumption | None, totals: Totals) -> Job:
        """Return the same run, going on from an earlier point of itself; None is its beginning."""
        return replace(self, host=host, resumed=resumed, totals=totals, again=True)


@dataclass(frozen=True)
class Base:
    """Attributes:
    engines: the rollout engines; the first attempt starts them.
    run_id: names what is the run's in places that are shared.
    api_key: what its servers require; '' for nothing.
    staging: the directory of exported snapshots.
    """

    cluster: Cluster
    engines: EngineGroup
    run_id: str
    api_key: str = field(repr=False)
    staging: Path


async def start_base(job: Job, interrupts: Interrupts, stack: contextlib.AsyncExitStack) -> Base:
    """Start Ray and reserve a place for every actor that needs one; it ends with the stack, and so do the engines."""
    core, facts, run_id = job.core, job.facts, secrets.token_hex(6)
    engine_needs: EngineNeeds = job.host.one("engine_needs")()
    rank_needs = EngineNeeds(gpus=1 if facts.device == "cuda" else 0, cpus=1)
    eval_needs = job.eval_plan.needs if job.eval_plan and core.eval_interval else ()
    bundles = [*[engine_needs] * core.num_engines, *[rank_needs] * core.trainer_ranks, *eval_needs]
    cluster = Cluster(
        core.ray_address, bundles, bind=core.bind, origin="num_engines, trainer_ranks" + ", eval" * bool(eval_needs)
    )
    staging = staging_directory(core.staging_dir, job.directory.path, run_id)
    janitor = Janitor([cluster.temp_dir, Path(core.publish_dir) / f"asyncrl-{run_id}", staging], [job.directory.lock.descriptor])
    stack.callback(janitor.close)
    stack.callback(cluster.stop)
    await cluster.start(core.start_timeout)
    interrupts.install()
    await cluster.reserve(core.start_timeout)
    engines = EngineGroup(cluster, 0, job.config.specs, facts)
    stack.push_async_callback(engines.stop)
    return Base(cluster, engines, run_id, key_for(core.bind), staging)

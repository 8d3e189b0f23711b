"""Ray for one run: start it, place actors, translate its errors, and leave nothing of it behind."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from asyncrl.errors import AsyncrlError, DeadlineExceeded, ResourceError, RunError
from asyncrl.rollout.engine import EngineNeeds
from asyncrl.rollout.patience import Wait

log = logging.getLogger("asyncrl")
T = TypeVar("T")
WARN_SECONDS = 30.0
OBJECT_STORE_BYTES = 2 * 2**30


class Cluster:
    """A Ray cluster of the run's own (`address` empty), or a running one that is joined.

    Args:
        address: as in `ray.init(address=…)`.
        bundles: resources of each actor that needs some, in the order in which `place` hands them out.
    """

    def __init__(self, address: str, bundles: list[EngineNeeds]) -> None:
        self._address = address
        self._bundles = bundles
        self._group: PlacementGroup | None = None
        self.temp_dir = Path(tempfile.mkdtemp(prefix="asyncrl-ray-"))

    def start(self) -> None:
        """Connect. Blocking; takes seconds."""
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if self._address:
            ray.init(address=self._address, log_to_driver=False)
            return
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # else Ray writes one into the user's home
        logging.getLogger("ray").setLevel(logging.ERROR)
        shared_memory = shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else OBJECT_STORE_BYTES
        cpus = max(os.cpu_count() or 1, round(sum(need.cpus for need in self._bundles)) + 1)
        ray.init(
            address="local",
            num_cpus=cpus,
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
            object_store_memory=int(min(OBJECT_STORE_BYTES, shared_memory * 0.3)),
            _temp_dir=str(self.temp_dir),
            _node_ip_address="127.0.0.1",
        )

    async def reserve(self, timeout: float) -> None:
        """Reserve every bundle. Raises `ResourceError` with what is wanted and what there is when that can't be had."""
        wanted = {"CPU": sum(need.cpus for need in self._bundles), "GPU": sum(need.gpus for need in self._bundles)}
        there = ray.cluster_resources()
        for kind, amount in wanted.items():
            if amount > there.get(kind, 0):
                raise ResourceError(
                    f"engines and trainer need {amount:g} {kind}s, there are {there.get(kind, 0):g}",
                    origin="num_engines, trainer_ranks",
                    remedy="use fewer, or --device cpu" if kind == "GPU" else "use fewer",
                )
        specs = [{"CPU": need.cpus, **({"GPU": need.gpus} if need.gpus else {})} for need in self._bundles]
        self._group = placement_group(specs, strategy="PACK")
        try:
            await asyncio.wait_for(self._group.ready(), timeout)
        except TimeoutError:
            raise ResourceError(
                f"the cluster did not give {wanted} within {timeout:g} s",
                origin="ray_address",
                remedy="wait for others to finish",
            ) from None

    def place(self, bundle: int) -> dict[str, Any]:
        """Return the `.options(…)` that puts an actor into its bundle."""
        need = self._bundles[bundle]
        strategy = PlacementGroupSchedulingStrategy(placement_group=self._group, placement_group_bundle_index=bundle)
        return {"num_cpus": need.cpus, "num_gpus": need.gpus, "scheduling_strategy": strategy}

    def stop(self) -> None:
        """Disconnect; a cluster of the run's own ends with all its processes and files."""
        ray.shutdown()
        shutil.rmtree(self.temp_dir, ignore_errors=True)


async def ask(reference: Awaitable[T], what: str, timeout: float | None = None, *, warn: bool = True) -> T:
    """Await an actor's answer, saying every 30 s that it is still waited for (not with `warn` off: the actor says it itself).

    Raises:
        AsyncrlError: what the actor raised, itself.
        RunError: the actor died, or raised something that is no `AsyncrlError`; the cause is chained.
        DeadlineExceeded: no answer within `timeout` seconds.
    """
    wait = Wait(WARN_SECONDS, lambda seconds: log.warning("still waiting for %s (%.0f s)", what, seconds))
    if warn:
        wait.begin()
    try:
        return await (asyncio.wait_for(reference, timeout) if timeout is not None else reference)
    except RayTaskError as error:
        cause = error.cause
        if isinstance(cause, AsyncrlError):
            raise cause from None
        raise RunError(f"{what} failed: {type(cause).__name__}: {cause}") from error
    except RayActorError as error:
        raise RunError(f"{what}: its process died: {error}") from error
    except (TimeoutError, GetTimeoutError):
        raise DeadlineExceeded(f"{what} gave no answer within {timeout:g} s") from None
    finally:
        wait.end()

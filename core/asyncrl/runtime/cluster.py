"""Ray for one run: start it, place actors, translate its errors, and leave nothing of it behind."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray._private import ray_constants
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from asyncrl.errors import ActorLost, AsyncrlError, DeadlineExceeded, ResourceError, RunError
from asyncrl.network import LOOPBACK, is_loopback
from asyncrl.rollout.engine import EngineNeeds
from asyncrl.rollout.patience import Wait
from asyncrl.runtime.last_words import last_words

log = logging.getLogger("asyncrl")
T = TypeVar("T")
WARN_SECONDS = 30.0
CONNECT_SECONDS = 10.0
SLOW_NODE = "timed out during startup"
"""In what Ray raises when its own node is not there within 30 s, whatever patience it is given."""
OTHERS_SECONDS = 20.0
RAY_LOG_BYTES = 64 * 2**20  # of each of Ray's own logs, which are gone with the run
OBJECT_STORE_BYTES = 2 * 2**30
NODE_DIED, NEVER_RAN = "its node has died", "The actor never ran"
"""How Ray says it."""


class Cluster:
    """A Ray cluster of the run's own (`address` empty), or a running one that is joined.

    Args:
        address: as in `ray.init(address=…)`.
        bundles: resources of each actor that needs some, in the order in which `place` hands them out.
        bind: address on which the run's servers listen.
        origin: the options that say how much that is.
    """

    def __init__(
        self, address: str, bundles: list[EngineNeeds], *, bind: str = LOOPBACK, origin: str = "num_engines, trainer_ranks"
    ) -> None:
        self._origin = origin
        self.bind = bind
        self._address = address
        self._bundles = bundles
        self._group: PlacementGroup | None = None
        self._stopped = threading.Event()
        self.temp_dir = Path(tempfile.mkdtemp(prefix="asyncrl-ray-"))

    async def start(self, timeout: float) -> None:
        """Connect; takes seconds.

        Raises:
            ResourceError: nothing answers at the address, or not within `timeout` seconds.
        """
        await self._require_address()
        deadline = asyncio.get_running_loop().time() + timeout
        what = f"the Ray cluster at {self._address}" if self._address else "a private Ray cluster"
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    return await self._connected()
            except Exception as cause:  # Ray raises bare ones too
                if SLOW_NODE not in str(cause) or asyncio.get_running_loop().time() > deadline:
                    why = cause or f"no answer within {timeout:g} s"
                    raise ResourceError(f"{what} did not start: {why}", origin="ray_address") from cause
                log.warning("the machine is so busy that %s was not there in time; it is started again", what)

    def _connected(self) -> asyncio.Future[None]:
        """Connect in a thread of its own.

        A daemon, so that a connection that never comes about does not keep the process. It stays until `stop`, because the kernel ends
        Ray's processes together with the thread that started them: those of a start that failed are gone before the next one.
        """
        loop = asyncio.get_running_loop()
        started: asyncio.Future[None] = loop.create_future()

        def connect() -> None:
            try:
                self._connect()
            except BaseException as error:
                loop.call_soon_threadsafe(_settle, started, error)
            else:
                loop.call_soon_threadsafe(_settle, started, None)
                self._stopped.wait()

        threading.Thread(target=connect, name="ray start", daemon=True).start()
        return started

    async def _require_address(self) -> None:
        """Refuse an address at which nothing listens: Ray itself would wait for minutes."""
        host, _, port = self._address.removeprefix("ray://").rpartition(":")
        if not host or not port.isdigit():
            return
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, writer = await asyncio.open_connection(host, int(port))
            writer.close()
        except (OSError, TimeoutError) as cause:
            raise ResourceError(
                f"nothing answers at {self._address}", origin="ray_address", remedy="leave it empty for a private cluster"
            ) from cause

    def _connect(self) -> None:
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ROTATION_MAX_BYTES", str(RAY_LOG_BYTES))
        os.environ.setdefault("RAY_ROTATION_BACKUP_COUNT", "1")
        os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # else Ray prints that of a batch that nobody waits for
        if self._address:
            ray.init(address=self._address, log_to_driver=False)
            return
        os.environ.setdefault("RAY_task_events_report_interval_ms", "0")  # else its books of past calls grow to 100,000
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # else Ray writes one into the user's home
        logging.getLogger("ray").setLevel(logging.ERROR)
        shared_memory = shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else OBJECT_STORE_BYTES
        cpus = max(os.cpu_count() or 1, round(sum(need.cpus for need in self._bundles)) + 1)
        with _on_loopback():
            ray.init(
                address="local",
                num_cpus=cpus,
                include_dashboard=False,
                log_to_driver=False,
                configure_logging=False,
                object_store_memory=int(min(OBJECT_STORE_BYTES, shared_memory * 0.3)),
                _temp_dir=str(self.temp_dir),
                _node_ip_address=LOOPBACK,
            )

    async def reserve(self, timeout: float) -> None:
        """Reserve every bundle. Raises `ResourceError` with what is wanted and what there is when that can't be had."""
        wanted = {"CPU": sum(need.cpus for need in self._bundles), "GPU": sum(need.gpus for need in self._bundles)}
        there = ray.cluster_resources()
        for kind, amount in wanted.items():
            if amount > there.get(kind, 0):
                raise ResourceError(
                    f"the run needs {amount:g} {kind}s, there are {there.get(kind, 0):g}",
                    origin=self._origin,
                    remedy="use fewer, or --device cpu" if kind == "GPU" else "use fewer",
                )
        specs = [{"CPU": need.cpus, **({"GPU": need.gpus} if need.gpus else {})} for need in self._bundles if _takes(need)]
        if not specs:
            return
        self._group = placement_group(specs, strategy="PACK")
        try:
            async with asyncio.timeout(timeout):
                await self._group.ready()
        except TimeoutError:
            raise ResourceError(
                f"the cluster did not give {wanted} within {timeout:g} s",
                origin="ray_address",
                remedy="wait for others to finish",
            ) from None
        nodes = {
            *ray.util.placement_group_table(self._group)["bundles_to_node_id"].values(),
            ray.get_runtime_context().get_node_id(),
        }
        if len(nodes) > 1 and is_loopback(self.bind):
            raise ResourceError(
                f"the cluster spreads the run over {len(nodes)} nodes, which do not reach each other at {self.bind}",
                origin="bind",
                remedy="use 0.0.0.0; servers then require a key",
            )

    def last_words(self, process: int) -> str:
        """Return what a worker process of a cluster of the run's own said at last, or ''."""
        logs = sorted(self.temp_dir.glob(f"session_*/logs/worker-*-{process}.err"))
        return last_words(logs[-1]) if logs else ""

    @property
    def num_bundles(self) -> int:
        return len(self._bundles)

    def place(self, bundle: int) -> dict[str, Any]:
        """Return the `.options(…)` that puts an actor into its bundle."""
        need = self._bundles[bundle]
        if not _takes(need):  # Ray knows no empty bundles
            return self.here()
        index = sum(map(_takes, self._bundles[:bundle]))
        strategy = PlacementGroupSchedulingStrategy(placement_group=self._group, placement_group_bundle_index=index)
        return {"num_cpus": need.cpus, "num_gpus": need.gpus, "scheduling_strategy": strategy}

    def here(self) -> dict[str, Any]:
        """Return the `.options(…)` that put an actor beside the controller, and take nothing that the cluster counts. Ray would put it on
        any node: one that does not reach the run's servers, or whose loss would take the batch along that the trainer has."""
        node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        return {"num_cpus": 0, "num_gpus": 0, "scheduling_strategy": node}

    def ask_other_nodes(self, function: Callable[..., T], *arguments: Any) -> list[T]:
        """Call a function on every other node of a cluster that was joined; return the answers that came within seconds. In any thread."""
        answers: list[T] = []

        def ask_all() -> None:
            here = ray.get_runtime_context().get_node_id()
            others = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != here]
            remote = ray.remote(function)
            places = [NodeAffinitySchedulingStrategy(node, soft=False) for node in others]
            calls = [remote.options(num_cpus=0, scheduling_strategy=place).remote(*arguments) for place in places]
            done, _ = ray.wait(calls, num_returns=len(calls), timeout=OTHERS_SECONDS) if calls else ([], [])
            answers.extend(ray.get(done, timeout=OTHERS_SECONDS))

        if self._address and ray.is_initialized():
            thread = threading.Thread(target=ask_all, name="other nodes", daemon=True)  # Ray itself may be what stands still
            thread.start()
            thread.join(2 * OTHERS_SECONDS)
        return list(answers)

    def stop(self) -> None:
        """Disconnect; a cluster of the run's own ends with all its processes and files."""
        ray.shutdown()
        self._stopped.set()
        shutil.rmtree(self.temp_dir, ignore_errors=True)


async def ask(reference: Awaitable[T], what: str, timeout: float | None = None, *, told: str = "") -> T:
    """Await an actor's answer, saying every 30 s that it is still waited for.

    Args:
        told: what it is waited for, where the actor warns of that itself.

    Raises:
        AsyncrlError: what the actor raised, itself.
        ActorLost: its process died.
        RunError: it raised something that is no `AsyncrlError`; the cause is chained.
        DeadlineExceeded: no answer within `timeout` seconds.
    """
    every = math.inf if told else WARN_SECONDS
    wait = Wait(every, lambda seconds: log.warning("still waiting for %s (%.0f s)", what, seconds), lambda: told or what)
    wait.begin()
    try:
        async with asyncio.timeout(timeout):  # not wait_for, which loses a cancellation that comes together with the answer
            return await reference
    except RayTaskError as error:
        cause = error.cause
        if isinstance(cause, AsyncrlError):
            raise cause from None
        raise RunError(f"{what} failed: {type(cause).__name__}: {cause}") from error
    except RayActorError as error:
        log.debug("%s", error)
        died = "its node died" if NODE_DIED in str(error) else "its process died (killed, or out of memory)"
        raise ActorLost(f"{what}: {died}") from error
    except (TimeoutError, GetTimeoutError):
        raise DeadlineExceeded(f"{what} gave no answer within {timeout:g} s") from None
    finally:
        wait.end()


async def placed(actor: Any, make: Callable[[], Any], what: str, timeout: float) -> Any:
    """Return the actor once it runs, or another of `make`: Ray places actors on a node that is gone until it has noticed that.

    Raises:
        ActorLost: it ran, and its process died.
        DeadlineExceeded: it found no place within `timeout` seconds.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + timeout
    while True:
        try:
            await ask(actor.__ray_ready__.remote(), what, deadline - clock())
            return actor
        except ActorLost as lost:
            if not all(words in str(lost.__cause__) for words in (NODE_DIED, NEVER_RAN)):
                raise
            log.warning("%s was placed on a node that is gone; it is placed again", what)
            actor = make()


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Have a Ray that is started here listen on loopback. It takes ``127.0.0.1`` for the machine's outward address, and then listens on
    every one, unless it was told that a cluster of several machines is not wanted."""
    wanted = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = wanted


def _takes(need: EngineNeeds) -> bool:
    """Whether it takes anything of the machine: an engine that is attached to takes nothing."""
    return need.cpus > 0 or need.gpus > 0


def _settle(future: asyncio.Future[None], error: BaseException | None) -> None:
    if not future.done():
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

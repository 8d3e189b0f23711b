"""Publication of new weights: the trainer's side and the engines' side brought together, by disk or by broadcast.

By disk: the trainer exports a Hugging Face directory (on a tmpfs by default), the engines load it, the directory is deleted.
By broadcast: a process group spans trainer rank 0 and the engines; it is joined once and kept until something fails in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import shutil
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from asyncrl.errors import AsyncrlError, OptionError, PublicationError, ResourceError, TrainerLost
from asyncrl.line_file import is_full
from asyncrl.metrics import Axis, Counter, Gauge, MetricSet
from asyncrl.paths import make_private
from asyncrl.rollout.engine import PauseMode
from asyncrl.training.interfaces import Exported, WeightGroup, WeightManifest

log = logging.getLogger("asyncrl")

BROADCAST_TRIES = 3  # the second finds out which engine fails again, the third goes on without it
CLEAN_UP_TIMEOUT = 20.0
FULL_DISK_SECONDS = 1.0  # between two tries
GRACE = 5.0  # by which the engines' own deadline, which names the engine, comes first


class TrainerSide(Protocol):
    """The trainer, all ranks as one."""

    async def export(self, directory: Path) -> Exported: ...

    async def manifest(self) -> WeightManifest: ...

    async def join(self, group: WeightGroup) -> None: ...

    async def broadcast(self, index: int) -> int: ...

    async def leave(self) -> None:
        """Leave the weight group; also makes a broadcast that is stuck in it fail."""
        ...


class EngineSide(Protocol):
    """The engines, as `asyncrl.rollout.weights.EngineWeights` offers them; see there."""

    async def members(self) -> dict[str, int]: ...

    async def take_packed(self) -> bool: ...

    async def load_from_disk(self, version: int, path: Path, digest: str, mode: PauseMode) -> None: ...

    async def join_weight_group(self, group: WeightGroup) -> None: ...

    async def receive(self, version: int, manifest: WeightManifest, mode: PauseMode) -> None: ...

    async def stop_update(self, reason: str) -> None: ...

    async def leave_weight_group(self) -> None: ...

    async def settle(self) -> None: ...


class PublicationMetrics(MetricSet):
    """Logged as ``publication/…``."""

    seconds = Gauge("Time to bring the new weights to every engine", unit="seconds", axis=Axis.WEIGHT_VERSION)
    gigabytes_per_second = Gauge("Size of the weights over that time", unit="GB/s", axis=Axis.WEIGHT_VERSION)
    retries = Counter("Publications that had to be tried again", unit="tries", axis=Axis.WEIGHT_VERSION)


@dataclass(frozen=True)
class PublishPlan:
    """How to publish.

    Attributes:
        strategy: ``disk`` or ``broadcast``.
        mode: ``retract`` or ``in_place``: what the engines do with requests in flight.
        timeout: seconds that the trainer's side and the engines' side of a publication may take, each.
        run_id: unique name of the run; part of the directory's name.
        directory: below which weights are exported (disk). Trainer and engines must both see it.
        address: of trainer rank 0, as the engines reach it (broadcast).
        backend: ``gloo`` or ``nccl`` (broadcast).
    """

    strategy: Literal["disk", "broadcast"]
    mode: PauseMode
    timeout: float
    run_id: str
    directory: Path = Path("/dev/shm")
    address: str = "127.0.0.1"
    backend: str = "gloo"

    def __post_init__(self) -> None:
        if str(self.mode) == "abort":
            raise OptionError(
                "mode 'abort' would kill work that is always in flight in an asynchronous run",
                origin="publish_mode",
                remedy="use 'retract' or 'in_place'",
            )
        if self.mode not in ("retract", "in_place") or self.strategy not in ("disk", "broadcast"):
            raise OptionError(f"no such way to publish: {self.strategy!r} with pause mode {self.mode!r}", origin="publish_mode")

    @property
    def staging(self) -> Path:
        """This run's own directory; everything in it is the publisher's."""
        return self.directory / f"asyncrl-{self.run_id}"


class Publisher:
    """Publishes the trainer's weights; `version` is what the engines serve.

    Args:
        digest: of the weights the engines serve at the start, so that the first publication too must change them; '' if unknown.
        version: which version that is.
        pick_port: returns a port that is free on the plan's address, where trainer rank 0 runs; None asks this machine.
    """

    def __init__(
        self,
        plan: PublishPlan,
        trainer: TrainerSide,
        engines: EngineSide,
        *,
        digest: str = "",
        version: int = 0,
        pick_port: Callable[[], Awaitable[int]] | None = None,
    ) -> None:
        self.version = version
        self.metrics = PublicationMetrics("publication")
        self._plan = plan
        self._trainer = trainer
        self._engines = engines
        self._digest = digest
        self._pick_port = pick_port or self._pick_here
        self._group: WeightGroup | None = None
        self._members: dict[str, int] = {}  # ranks by name
        self._doing = ""
        self._failure = ""  # of the latest try that failed
        if plan.strategy == "disk":
            shutil.rmtree(plan.staging, ignore_errors=True)  # what a killed run of this name left behind

    async def publish(self, update_norm: float) -> int:
        """Bring the trainer's present weights to every engine as the next version, and return it.

        Args:
            update_norm: norm of the change since the last publication; if it is not 0, the weights must differ.

        Raises:
            PublicationError: they did not reach the engines in time, or have not changed; names engine and cause.
        """
        return await self._publish(lambda digest: self._next_version(digest, update_norm))

    async def bring_up(self) -> int:
        """Bring engines that restarted or came late to the weights, and return the version: the present one if the trainer has
        not learnt since, else the next. Call it between training steps; other engines are paused for it too."""
        return await self._publish(lambda digest: self.version + (digest != self._digest))

    def forget_members(self) -> None:
        """Have the next publication by broadcast form a new group: an engine has another server, which is in none."""
        self._members = {}

    async def close(self) -> None:
        """Leave the weight group and remove what was exported."""
        if self._group is not None:
            await self._break_group()
        await asyncio.to_thread(shutil.rmtree, self._plan.staging, ignore_errors=True)

    def _next_version(self, digest: str, update_norm: float) -> int:
        if update_norm > 0 and digest == self._digest:
            raise PublicationError(
                f"the weights of version {self.version + 1} equal those of version {self.version}, although training changed them "
                f"(update norm {update_norm:.3g})",
                remedy="an adapter that is not merged, frozen parameters, or an update below the resolution of the publish dtype",
            )
        return self.version + 1

    async def _publish(self, number: Callable[[str], int]) -> int:
        started = time.monotonic()
        self._failure = ""
        by = self._by_disk if self._plan.strategy == "disk" else self._by_broadcast
        try:
            async with asyncio.timeout(2 * self._plan.timeout + GRACE):
                version, digest, num_bytes = await by(number)
        except TimeoutError:
            raise PublicationError(
                f"publication of version {self.version + 1} was not done in time (publish_timeout is {self._plan.timeout:g} s): "
                f"{self._failure or self._doing}"
            ) from None
        except AsyncrlError as cause:
            cause.origin = cause.origin or f"publication of version {self.version + 1} by {self._plan.strategy}"
            raise
        self.version, self._digest = version, digest
        seconds = time.monotonic() - started
        self.metrics.seconds.set(seconds)
        self.metrics.gigabytes_per_second.set(num_bytes / 1e9 / seconds)
        return version

    # Disk -----------------------------------------------------------------------------------------------------------

    async def _by_disk(self, number: Callable[[str], int]) -> tuple[int, str, int]:
        directory = self._plan.staging / f"v-{self.version + 1}"
        try:
            self._doing = f"the trainer was exporting to {directory}"
            make_private(directory.parent, origin="publish_dir")
            async with asyncio.timeout(self._plan.timeout):
                exported = await self._export(directory)
            version = number(exported.digest)
            self._doing = "the engines were loading"
            await self._engines.load_from_disk(version, exported.directory, exported.digest, self._plan.mode)
            return version, exported.digest, exported.num_bytes
        finally:
            await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)

    async def _export(self, directory: Path) -> Exported:
        """Have the weights exported. Room on a full disk is waited for: it may be others who fill it."""
        while True:
            try:
                exported = await self._trainer.export(directory)
                self._failure = ""
                return exported
            except AsyncrlError as error:
                if not is_full(error):
                    raise
                if not self._failure:
                    self.metrics.retries.add()
                    log.warning("publication of version %d waits for room: %s", self.version + 1, error.message)
                self._failure = error.message
                await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)
                await asyncio.sleep(FULL_DISK_SECONDS)

    # Broadcast ------------------------------------------------------------------------------------------------------

    async def _by_broadcast(self, number: Callable[[str], int]) -> tuple[int, str, int]:
        self._doing = "the trainer was listing its weights"
        started = time.monotonic()
        async with asyncio.timeout(self._plan.timeout):
            manifest = await self._trainer.manifest()
        version = number(manifest.digest)
        try:
            for attempt in range(1, BROADCAST_TRIES + 1):
                try:
                    await self._form_group()
                    await self._send(version, manifest)
                    return version, manifest.digest, manifest.num_bytes
                except PublicationError as cause:
                    if attempt == BROADCAST_TRIES or time.monotonic() - started > self._plan.timeout:
                        raise
                    self.metrics.retries.add()
                    log.warning("publication of version %d by broadcast is tried again: %s", version, cause.message)
            raise AssertionError("unreachable")
        finally:
            await self._settle()

    async def _form_group(self) -> None:
        """Join both sides, unless the group stands and the engines are the same as before."""
        self._doing = "looking which engines answer"
        members = await self._engines.members()
        if self._group is not None and members == self._members:
            return
        if self._group is not None:
            await self._break_group()
        group = WeightGroup(
            name=f"asyncrl-{self._plan.run_id}-{secrets.token_hex(4)}",
            address=self._plan.address,
            port=await self._pick_port(),
            world_size=1 + sum(members.values()),
            backend=self._plan.backend,
            timeout=self._plan.timeout,
            packed=await self._engines.take_packed(),
        )
        self._group, self._members = group, members
        self._doing = f"joining the weight group of the trainer and {', '.join(members)}"
        await self._together(self._trainer.join(group), self._engines.join_weight_group(group))

    async def _pick_here(self) -> int:
        return free_port(self._plan.address)

    async def _send(self, version: int, manifest: WeightManifest) -> None:
        await self._together(
            self._broadcast(manifest, version), self._engines.receive(version, manifest, self._plan.mode), stoppable=True
        )

    async def _broadcast(self, manifest: WeightManifest, version: int) -> None:
        for index in range(len(manifest.buckets)):
            self._doing = (
                f"sending bucket {index + 1} of {len(manifest.buckets)} of version {version} to {', '.join(self._members)}"
            )
            await self._trainer.broadcast(index)
        self._doing = f"confirming version {version} on {', '.join(self._members)}"

    async def _together(
        self, trainer: Coroutine[Any, Any, Any], engines: Coroutine[Any, Any, None], *, stoppable: bool = False
    ) -> None:
        """Run both sides of a collective. Whichever fails first ends the other, which would wait for it for ever."""
        sides = {asyncio.ensure_future(trainer): "trainer", asyncio.ensure_future(engines): "engines"}
        try:
            done, _ = await asyncio.wait(sides, return_when=asyncio.FIRST_EXCEPTION)
            first = next((task for task in done if task.exception() is not None), None)
            if first is None:
                return
            self._failure = f"{sides[first]}: {_words(first.exception())}"
            if stoppable and sides[first] == "trainer":
                await self._quietly(self._engines.stop_update(f"the trainer's side failed: {_words(first.exception())}"))
            await self._break_group()  # makes a send or receive that is stuck in the group fail
            _, stuck = await asyncio.wait(sides, timeout=CLEAN_UP_TIMEOUT)
            causes = [
                f"{side}: {_words(task.exception())}" for task, side in sides.items() if task not in stuck and task.exception()
            ]
            if isinstance(lost := first.exception(), TrainerLost):  # another try would have no trainer
                raise lost
            raise PublicationError("; ".join(causes)) from first.exception()
        except asyncio.CancelledError:
            if stoppable:
                await self._quietly(self._engines.stop_update("the publication was given up"))
            await self._break_group()
            raise
        finally:
            for task in sides:
                task.cancel()
            await asyncio.gather(*sides, return_exceptions=True)

    async def _break_group(self) -> None:
        """Leave the group on both sides, the trainer first: its end of the connections is what engines may be stuck on."""
        self._group = None
        await self._quietly(self._trainer.leave())
        await self._quietly(self._engines.leave_weight_group())

    async def _settle(self) -> None:
        await self._quietly(self._engines.settle())

    async def _quietly(self, clean_up: Awaitable[None]) -> None:
        """Clean up within a deadline; a failure in it must not hide the one that it follows."""
        with contextlib.suppress(Exception):
            async with asyncio.timeout(CLEAN_UP_TIMEOUT):
                await clean_up


def check_space(directory: Path, bytes_needed: int, origin: str) -> None:
    """Refuse to start when a file system is too full. Raises `ResourceError` with the numbers.

    Args:
        directory: need not exist yet; its nearest parent that does is looked at.
        origin: the option that chose it, such as ``publish_dir``.
    """
    place = directory.absolute()
    while not place.exists():
        place = place.parent
    if not os.access(place, os.W_OK):
        raise ResourceError(f"{place} is not writable", origin=origin)
    free = shutil.disk_usage(place).free
    if free < bytes_needed:
        raise ResourceError(
            f"{directory} has {free / 1e6:,.1f} MB free where {bytes_needed / 1e6:,.1f} MB are needed",
            origin=origin,
            remedy="free some space or choose another directory",
        )


def free_port(address: str) -> int:
    """Return a port that is free on `address` at this moment."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def _words(error: BaseException | None) -> str:
    return str(error) or type(error).__name__

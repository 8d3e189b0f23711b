"""The engines' side of a publication: pause, update, confirm what arrived, label it, resume. Nothing in flight is aborted.

An engine whose update fails is tried once more; then it is given up, so that it gets no request until a later publication reaches
it, while the others go on. Whatever happens, every engine that was paused is resumed; one whose weights may be half updated first
ends its requests, because what they would generate is neither the old weights' nor the new ones'.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from asyncrl.errors import EngineError, EngineFault, PublicationError
from asyncrl.rollout.client import EngineClient
from asyncrl.rollout.engine import PauseMode, WeightBucket
from asyncrl.rollout.takeover import Served, take_over
from asyncrl.training.interfaces import WeightGroup, WeightManifest

log = logging.getLogger("asyncrl")

CLEAN_UP_TIMEOUT = 5.0
TRIES = 2
STALL_PAUSE = 0.5
UNKNOWN = "unknown"

Update = Callable[[EngineClient], Awaitable[None]]


class EngineWeights:
    """Brings new weights to engines.

    Args:
        engines: kept, not copied: an engine appended later takes part from the next publication on.
        timeout: seconds for one `load_from_disk`, `join_weight_group` or `receive`.
        digest: the trainer's, of the weights that servers have at first; '' if unknown.
        restart_digest: likewise of those with which a server starts later.
        leave_out: called before engines that were given up, and are no longer `alive`, generate again.
    """

    def __init__(
        self,
        engines: Sequence[EngineClient],
        *,
        timeout: float,
        digest: str = "",
        restart_digest: str = "",
        leave_out: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._engines = engines
        self._leave_out = leave_out
        self._timeout = timeout
        self._initial = digest
        self._restarted = restart_digest
        self._digests: dict[str, str] = {}  # the trainer's, of what each engine serves; `UNKNOWN` after a failure
        self._checksums: dict[str, str] = {}  # of engines whose checksum is not comparable with the trainer's
        self._strikes: dict[str, list[str]] = {}  # causes of an engine's failures in the publication under way
        self._members: list[EngineClient] = []
        self._lives: dict[EngineClient, int] = {}  # of the members' servers when they were chosen
        self._group = ""
        self._packed = False  # the group's buckets
        self._receiving: asyncio.Task[None] | None = None
        self._stop_reason = ""
        self._lock = asyncio.Lock()
        self._flushes: set[asyncio.Task[None]] = set()

    async def members(self) -> dict[str, int]:
        """Choose who takes part in the next update: the engines that answer and have not failed twice in this publication. Return how
        many ranks each takes in a weight group.

        While none answers, those that stall (and do not refuse the connection, as a dead one does) are waited for.

        Raises:
            PublicationError: every engine is dead or has failed twice, or none has answered within the timeout.
        """
        deadline = asyncio.get_running_loop().time() + self._timeout
        while True:
            causes = dict(zip(self._engines, await asyncio.gather(*map(_unreachable, self._engines)), strict=True))
            struck = {engine: cause for engine in self._engines if (cause := self._struck(engine))}
            self._members = [engine for engine, cause in causes.items() if cause is None and engine not in struck]
            if self._members:
                self._lives = {engine: engine.life for engine in self._members}
                return {engine.name: engine.weight_ranks for engine in self._members}
            why = {engine.name: struck.get(engine) or (cause.message if cause else "") for engine, cause in causes.items()}
            stalled = [engine for engine, cause in causes.items() if engine not in struck and _may_come_back(cause)]
            if not stalled or asyncio.get_running_loop().time() > deadline:
                raise PublicationError(f"no engine is left to publish to: {_listed(why)}")
            log.warning("no engine answers, waiting for one to publish to: %s", _listed(why))
            await asyncio.sleep(STALL_PAUSE)

    def moved(self, engine: EngineClient, url: str, *, known: bool = True) -> None:
        """An engine has a new server, in no weight group and with the weights of its start, or with `known` false any weights."""
        engine.moved(url)
        self._checksums.pop(engine.name, None)
        self._digests[engine.name] = self._restarted if known else UNKNOWN

    async def take_over(self, served: Served) -> list[str]:
        """Go on with engines whose client died; return those that get no requests until an update has reached them."""
        fit = await asyncio.gather(*(take_over(engine, served) for engine in self._engines))
        misfits = [engine.name for engine, is_fit in zip(self._engines, fit, strict=True) if not is_fit]
        self._digests = {engine.name: UNKNOWN if engine.name in misfits else served.digest for engine in self._engines}
        self._group, self._members = served.group, list(self._engines)  # so that they leave it when the trainer does
        return misfits

    # By disk --------------------------------------------------------------------------------------------------------

    async def load_from_disk(self, version: int, path: Path, digest: str, mode: PauseMode) -> None:
        """Bring every engine to `version` from a Hugging Face directory.

        Args:
            digest: the trainer's, of the weights in `path`.

        Raises:
            PublicationError: no engine could be brought to it; names each engine and its cause.
        """

        async def update(engine: EngineClient) -> None:
            await engine.pause(mode)
            before = await self._checksum_before(engine)
            engine.unfit = True
            await engine.load_from_disk(path, version, flush_cache=mode == "retract")
            await self._confirm(engine, version, digest, before)

        async with self._lock:
            try:
                await self.members()
                deadline = asyncio.get_running_loop().time() + self._timeout  # a server that hangs has taken some seconds
                causes = await self._each(self._members, update, deadline)
                if causes:
                    again = [engine for engine in self._members if engine.name in causes]
                    log.warning("publication of version %d is tried again: %s", version, _listed(causes))
                    causes = await self._each(again, update, deadline)
                self._conclude(version, digest, causes)
            finally:
                await self._resume(mode)

    # By broadcast ---------------------------------------------------------------------------------------------------

    async def take_packed(self) -> bool:
        """Whether all that `members` chose, and asked what they can do, take a bucket as one tensor."""
        return all(engine.takes_packed for engine in self._members)

    async def join_weight_group(self, group: WeightGroup) -> None:
        """Have the engines that `members` chose join from rank 1 on, in order; the trainer joins as rank 0 at the same time."""
        ranks, size = {}, 1
        for engine in self._members:
            ranks[engine.name] = size
            size += engine.weight_ranks
        if group.world_size != size:
            raise PublicationError(
                f"a weight group of {group.world_size} cannot hold the trainer and {size - 1} ranks of engines"
            )

        async def join(engine: EngineClient) -> None:
            await engine.join_weight_group(
                address=group.address,
                port=group.port,
                rank=ranks[engine.name],
                world_size=group.world_size,
                name=group.name,
                backend=group.backend,
            )

        self._group, self._packed = group.name, group.packed
        await self._all(self._members, join, asyncio.get_running_loop().time() + self._timeout, "joining the weight group")

    async def receive(self, version: int, manifest: WeightManifest, mode: PauseMode) -> None:
        """Bring the members of the group to `version`, while the trainer broadcasts the manifest's buckets in order.

        After a failure the engines stay paused: call it again for another try, and `settle` at the end in any case.

        Raises:
            PublicationError: an engine failed, or `stop_update` was called; names engine and cause.
        """
        self._stop_reason = ""
        async with self._lock:
            self._receiving = asyncio.get_running_loop().create_task(self._receive(version, manifest, mode))
            try:
                await self._receiving
            except asyncio.CancelledError:
                if not self._stop_reason:
                    raise
                raise PublicationError(self._stop_reason) from None
            finally:
                self._receiving = None
            await self._resume(mode)

    async def stop_update(self, reason: str) -> None:
        """Make a `receive` under way fail with `reason`: the other side of the broadcast has failed."""
        if self._receiving is not None:
            self._stop_reason = reason
            self._receiving.cancel()

    async def leave_weight_group(self) -> None:
        """Have the engines leave the group, whatever state they are in; best effort within seconds."""
        group, self._group = self._group, ""
        if group:
            await asyncio.gather(*(self._leave(engine, group) for engine in self._members))

    async def settle(self) -> None:
        """Resume whatever an update that failed has left paused. A publication by broadcast ends with this."""
        self._strikes.clear()
        async with self._lock:
            await self._resume("retract")

    async def close(self) -> None:
        """End background work."""
        for task in self._flushes:
            task.cancel()
        await asyncio.gather(*self._flushes, return_exceptions=True)

    async def _receive(self, version: int, manifest: WeightManifest, mode: PauseMode) -> None:
        members, group = self._members, self._group
        deadline = asyncio.get_running_loop().time() + self._timeout
        before: dict[str, str] = {}

        async def begin(engine: EngineClient) -> None:
            await engine.pause(mode)
            before[engine.name] = await self._checksum_before(engine)
            engine.unfit = True
            try:
                await engine.begin_update()
            except EngineFault:
                raise
            except EngineError:  # an update that broke off was left open
                with contextlib.suppress(EngineError):
                    await engine.end_update()
                await engine.begin_update()

        async def end(engine: EngineClient) -> None:
            await engine.end_update()
            await self._confirm(engine, version, manifest.digest, before[engine.name])

        await self._all(members, begin, deadline, "beginning the update")
        for index, bucket in enumerate(manifest.buckets):
            flush = mode == "retract" and index == len(manifest.buckets) - 1
            receive = _receiving(bucket, group, version, flush, self._packed)
            await self._all(members, receive, deadline, f"receiving bucket {index + 1} of {len(manifest.buckets)}")
        await self._all(members, end, deadline, "ending the update")
        self._conclude(version, manifest.digest, {})

    async def _leave(self, engine: EngineClient, group: str) -> None:
        with contextlib.suppress(EngineError, TimeoutError):
            async with asyncio.timeout(CLEAN_UP_TIMEOUT):
                if engine.unfit:
                    with contextlib.suppress(EngineError):  # nothing was begun
                        await engine.end_update()
                await engine.leave_weight_group(group)

    # Both -----------------------------------------------------------------------------------------------------------

    async def _checksum_before(self, engine: EngineClient) -> str:
        """The checksum that an update must change, where it cannot be compared with the trainer's digest."""
        if engine.comparable_digest:
            return ""
        if engine.name not in self._checksums:
            self._checksums[engine.name] = await engine.digest()
        return self._checksums[engine.name]

    async def _confirm(self, engine: EngineClient, version: int, digest: str, before: str) -> None:
        """Check that the engine serves what was sent, under the right label."""
        found = await engine.digest()
        if engine.comparable_digest:
            if found != digest:
                raise PublicationError(f"it serves weights with digest {found[:12]}, the trainer sent {digest[:12]}")
        elif found and found == before and self._digests.get(engine.name, self._initial) not in (digest, UNKNOWN):
            raise PublicationError("it took the update, but its weights did not change")
        if await engine.served_version() != version:
            await engine.set_version_label(version)
        if self._died(engine):
            raise PublicationError("its server died in the middle of it")
        if not engine.comparable_digest:
            self._checksums[engine.name] = found
        engine.unfit = False

    def _struck(self, engine: EngineClient) -> str:
        """Why an engine takes no more part in the publication under way; '' while it does."""
        causes = self._strikes.get(engine.name, [])
        return f"failed twice, at last: {causes[-1]}" if len(causes) >= TRIES else ""

    def _died(self, engine: EngineClient) -> bool:
        """Whether it has lost the server with which it was chosen, and what that one received."""
        return engine.life != self._lives[engine]

    def _conclude(self, version: int, digest: str, causes: dict[str, str]) -> None:
        """Count as `version` the members that did not fail, and give up every other engine."""
        reached = [engine for engine in self._members if engine.name not in causes and not self._died(engine)]
        for engine in self._members:
            if engine not in reached and not self._died(engine):
                self._digests[engine.name] = UNKNOWN
        checksums = {self._checksums[engine.name] for engine in reached if not engine.comparable_digest}
        if not reached:
            raise PublicationError(f"version {version} reached no engine: {_listed(causes)}")
        if len(checksums) > 1:
            names = ", ".join(engine.name for engine in reached)
            for engine in reached:
                engine.unfit = True
            raise PublicationError(f"engines serve different weights as version {version}: {names}")
        for engine in self._engines:
            if engine in reached:
                engine.version = version
                engine.alive = True
                self._digests[engine.name] = digest
            elif not engine.unfit or engine.alive:
                engine.unfit = True
                engine.alive = False
                cause = causes.get(engine.name) or self._struck(engine) or "it did not answer"
                log.warning("%s was not brought to version %d and gets no requests: %s", engine.name, version, cause)
        self._strikes.clear()

    async def _resume(self, mode: PauseMode) -> None:
        """Resume every paused engine; an unfit one then ends its requests, and gets none of others."""
        paused = [engine for engine in self._engines if engine.paused]
        given_up = [engine for engine in paused if engine.unfit]
        for engine in given_up:
            engine.alive = False
        if given_up and self._leave_out is not None:
            await self._leave_out()
        causes = await self._each(paused, self._resume_one, asyncio.get_running_loop().time() + self._timeout)
        for engine in self._engines:
            if engine.name in causes:
                engine.unfit, engine.alive = True, False
                log.warning("%s could not be resumed and gets no requests: %s", engine.name, causes[engine.name])
            elif mode == "in_place" and not engine.drops_stale_prefixes and engine.alive:
                task = asyncio.get_running_loop().create_task(self._flush(engine, engine.version))
                self._flushes.add(task)
                task.add_done_callback(self._flushes.discard)

    async def _resume_one(self, engine: EngineClient) -> None:
        try:
            await engine.resume()
        except EngineFault:
            await engine.resume()
        if engine.unfit:  # only now: a server may hold what came during the pause where no abort reaches it
            with contextlib.suppress(EngineError):
                await engine.abort_all()

    async def _flush(self, engine: EngineClient, version: int) -> None:
        """Drop the old weights' prefixes as soon as the server is idle for a moment, which it may never be."""
        while engine.alive and engine.version == version:
            try:
                await engine.flush_cache()
                return
            except EngineError:
                await asyncio.sleep(1.0)

    async def _each(self, engines: Sequence[EngineClient], update: Update, deadline: float) -> dict[str, str]:
        """Run `update` on all; return the causes of those that failed or passed the deadline, by engine."""
        return await self._run(engines, update, deadline, asyncio.ALL_COMPLETED)

    async def _all(self, engines: Sequence[EngineClient], update: Update, deadline: float, what: str) -> None:
        """Run `update` on all; at the first failure give up the rest, which a collective would leave waiting."""
        causes = await self._run(engines, update, deadline, asyncio.FIRST_EXCEPTION)
        for name, cause in causes.items():
            self._strikes.setdefault(name, []).append(cause)
        if causes:
            raise PublicationError(f"{what} failed: {_listed(causes)}")

    async def _run(self, engines: Sequence[EngineClient], update: Update, deadline: float, until: str) -> dict[str, str]:
        if not engines:
            return {}
        tasks = {asyncio.ensure_future(update(engine)): engine.name for engine in engines}
        try:
            done, pending = await asyncio.wait(tasks, timeout=deadline - asyncio.get_running_loop().time(), return_when=until)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        causes: dict[str, str] = {}
        for task, name in tasks.items():
            error = task.exception() if task in done else None
            if isinstance(error, EngineError | PublicationError):
                causes[name] = error.message
            elif error is not None:
                raise error
        if until == asyncio.ALL_COMPLETED or not causes:
            causes.update({name: f"not done within {self._timeout:g} s" for task, name in tasks.items() if task in pending})
        return causes


async def _unreachable(engine: EngineClient) -> EngineError | None:
    """Return why an engine does not answer, or None."""
    try:
        await engine.look()
    except EngineError as cause:
        return cause
    return None


def _may_come_back(cause: EngineError | None) -> bool:
    return isinstance(cause, EngineFault) and not cause.unreachable


def _receiving(bucket: WeightBucket, group: str, version: int, flush_cache: bool, packed: bool) -> Update:
    packed = packed and bucket.can_be_packed
    return lambda engine: engine.receive_bucket(bucket, group=group, version=version, flush_cache=flush_cache, packed=packed)


def _listed(causes: dict[str, str]) -> str:
    return "; ".join(f"{name}: {cause}" for name, cause in causes.items())

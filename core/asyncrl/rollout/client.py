"""One engine over HTTP: generation, and the control calls of a publication, each with a deadline and a typed error.

What is retried and where a request goes is the pool's business; this file only says what one call did.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from dataclasses import replace
from typing import Any, Self

import aiohttp
import orjson

from asyncrl.errors import EngineError, EngineFault
from asyncrl.rollout.abilities import CURRENT, Abilities, read_abilities
from asyncrl.rollout.connection import Connection
from asyncrl.rollout.engine import GenerateRequest, PauseMode, ServerSpec, WeightBucket
from asyncrl.rollout.loads import Load, Usage, read_load
from asyncrl.rollout.reply import read_version
from asyncrl.rollout.sender import Sender
from asyncrl.samples import Completion

ABORT_TIMEOUT = 5.0
HEALTH_TIMEOUT = 10.0


class EngineClient:
    """One engine's server; satisfies `asyncrl.rollout.engine.Engine`.

    Args:
        name: for messages and metrics.
        url: base address, such as ``http://127.0.0.1:30000``.
        session: from `make_session` (`asyncrl.rollout.connection`), shared by all clients.
        vocab_size: ids outside [0, vocab_size) are refused before they are sent; one would kill a real server.
        request_timeout: seconds a request may take in all.
        control_timeout: seconds for pause, resume and other short control calls.
        update_timeout: seconds for calls that move weights or join a group.
        comparable_digest, needs_begin_end, drops_stale_prefixes, takes_seeds, takes_packed, weight_ranks, api_key: see `ServerSpec`.
        version: weight version of the weights the server starts with.

    Every call raises `EngineFault` for what another try may cure and another `EngineError` for what it will not.
    """

    def __init__(
        self,
        name: str,
        url: str,
        session: aiohttp.ClientSession,
        *,
        vocab_size: int,
        request_timeout: float,
        control_timeout: float = 60.0,
        update_timeout: float = 1800.0,
        comparable_digest: bool = True,
        needs_begin_end: bool = True,
        drops_stale_prefixes: bool = True,
        takes_seeds: bool = False,
        takes_packed: bool = False,
        weight_ranks: int = 1,
        api_key: str = "",
        version: int = 0,
    ) -> None:
        self.name = name
        self.comparable_digest = comparable_digest
        self.needs_begin_end = needs_begin_end
        self.drops_stale_prefixes = drops_stale_prefixes
        self.takes_seeds = takes_seeds
        self.takes_packed = takes_packed
        self.weight_ranks = weight_ranks
        self.api_key = api_key
        self.version = version
        self.initial_version = version
        self.life = 0  # of its server: whatever was done in an earlier one is lost
        self.alive = True
        self.paused = False
        self.unfit = False  # its weights are old or half updated: no requests until an update succeeds
        self.control_timeout = control_timeout
        self.update_timeout = update_timeout
        self._connection = Connection(name, url, session, api_key)
        self._sender = Sender(
            self._connection,
            vocab_size=vocab_size,
            request_timeout=request_timeout,
            takes_seeds=takes_seeds,
            abort=self.abort,
        )
        self._abilities: Abilities | None = None
        self.cache_key = 0  # of requests sent now; 0 is the server's own
        self._aborts: set[asyncio.Task[None]] = set()

    @classmethod
    def of_spec(
        cls, name: str, spec: ServerSpec, session: aiohttp.ClientSession, *, vocab_size: int, request_timeout: float, **more: Any
    ) -> Self:
        """Return the client of a server described by its plugin."""
        return cls(
            name,
            spec.url,
            session,
            vocab_size=vocab_size,
            request_timeout=request_timeout,
            comparable_digest=spec.comparable_digest,
            needs_begin_end=spec.needs_begin_end,
            drops_stale_prefixes=spec.drops_stale_prefixes,
            takes_seeds=spec.takes_seeds,
            takes_packed=spec.takes_packed,
            weight_ranks=spec.weight_ranks,
            api_key=spec.api_key,
            **more,
        )

    def __repr__(self) -> str:
        return f"<engine {self.name} at {self.url}>"

    @property
    def url(self) -> str:
        """Base address of its present server."""
        return self._connection.url

    @property
    def in_flight(self) -> int:
        """Requests that were sent and not answered."""
        return self._sender.in_flight

    @property
    def busy_seconds(self) -> float:
        """Seconds so far with at least one request in flight."""
        return self._sender.busy_seconds

    @property
    def usage(self) -> Usage:
        """Tokens of the prompts that it answered."""
        return self._sender.usage

    # Another server -------------------------------------------------------------------------------------------------

    def lost(self) -> None:
        """Its server is gone, or will be ended: no requests until an update has reached the next one."""
        self.life += 1
        self.alive, self.unfit, self.paused = False, True, False

    def moved(self, url: str) -> None:
        """Another server, started as the former one was, answers at `url`; it serves the weights of its start."""
        self.lost()
        self._connection.url = url

    # Generation -----------------------------------------------------------------------------------------------------

    async def generate(self, request: GenerateRequest) -> Completion:
        """Generate once. A request given up, by its deadline or by cancelling this call, is aborted at the server too.

        Raises:
            RequestFailed: the request itself is wrong; no engine would take it.
            EngineFault: the engine failed, answered with something else than a completion, or not in time.
        """
        completion = await self._sender.send(
            request, admitted=self.version, initial_version=self.initial_version, cache_key=self.cache_key
        )
        if self.unfit and not self.alive:
            raise EngineFault("it answered under weights that an update may have left half changed", origin=self.name)
        return completion

    def abort(self, rid: str) -> None:
        """Have the server end a request, if it has it; in the background."""
        task = asyncio.get_running_loop().create_task(self._abort(rid))
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def _abort(self, rid: str) -> None:
        with contextlib.suppress(EngineError):  # the server is gone, and the request with it
            await self._connection.call("/abort_request", {"rid": rid}, ABORT_TIMEOUT)

    async def close(self) -> None:
        """Wait for the aborts under way (each has a deadline of a few seconds)."""
        await asyncio.gather(*self._aborts, return_exceptions=True)

    # Control --------------------------------------------------------------------------------------------------------

    async def abilities(self, timeout: float = 0) -> Abilities:
        """What the server can do; asked once, within `timeout` seconds if given."""
        if self._abilities is None:
            try:
                api = await self._connection.call("/openapi.json", None, timeout or self.control_timeout, "GET")
                self._abilities = read_abilities(api)
            except EngineFault:
                raise
            except (EngineError, LookupError, TypeError, AttributeError):  # it lists nothing
                self._abilities = CURRENT
            if self._abilities.begin_end is not None:
                self.needs_begin_end = self._abilities.begin_end
            if self._abilities.packed is not None:
                self.takes_packed = self._abilities.packed
            self.drops_stale_prefixes |= self._abilities.cache_keys
        return self._abilities

    async def pause(self, mode: PauseMode) -> None:
        """Stop generating between two tokens; what is in flight stays in flight, new requests are held.

        A server whose pause would abort what is in flight is not paused: an update then waits for what runs, and holds the rest.
        """
        can = await self.abilities()
        if not can.pauses:
            return
        self.paused = True
        await self._connection.call("/pause_generation", {"mode": mode}, self.control_timeout)
        if can.cache_keys and mode == "in_place":
            self.cache_key += 1  # requests sent from now on run under the new weights: no prefix of the old ones

    async def resume(self) -> None:
        await self._connection.call("/continue_generation", {}, self.control_timeout)
        self.paused = False

    async def load_from_disk(self, path: os.PathLike[str], version: int, *, flush_cache: bool) -> None:
        """Replace the weights by those of a Hugging Face directory. The caller pauses first: without a pause the server would
        wait for its running requests."""
        await self._connection.call(
            "/update_weights_from_disk",
            {
                "model_path": os.fspath(path),
                "weight_version": str(version),
                "flush_cache": flush_cache,
                "abort_all_requests": False,
            },
            self.update_timeout,
        )

    async def join_weight_group(self, *, address: str, port: int, rank: int, world_size: int, name: str, backend: str) -> None:
        """Join the group of a broadcast; answers once all members have joined."""
        if not self.weight_ranks:
            raise EngineError("it can't join a weight group", origin=self.name, remedy="use publish_method = disk")
        if not (await self.abilities()).pauses:
            raise EngineError(
                "its pause would abort what is in flight, and without a pause requests would meet half updated weights",
                origin=self.name,
                remedy="use publish_method = disk, or SGLang 0.5.6 or newer",
            )
        await self._connection.call(
            "/init_weights_update_group",
            {
                "master_address": address,
                "master_port": port,
                "rank_offset": rank,
                "world_size": world_size,
                "group_name": name,
                "backend": backend,
            },
            self.update_timeout,
        )

    async def leave_weight_group(self, name: str) -> None:
        if (await self.abilities()).leaves_groups:
            await self._connection.call("/destroy_weights_update_group", {"group_name": name}, self.control_timeout)

    async def begin_update(self) -> None:
        await self.abilities()
        if self.needs_begin_end:
            await self._connection.call("/begin_weight_update", {}, self.control_timeout)

    async def receive_bucket(self, bucket: WeightBucket, *, group: str, version: int, flush_cache: bool, packed: bool) -> None:
        """Receive one bucket; the sender must broadcast its tensors in the same order and form at the same time."""
        form = {"load_format": "flattened_bucket"} if packed else {}
        await self._connection.call(
            "/update_weights_from_distributed",
            {
                "names": bucket.names,
                "dtypes": bucket.dtypes,
                "shapes": bucket.shapes,
                "group_name": group,
                "flush_cache": flush_cache,
                "abort_all_requests": False,
                "weight_version": str(version),
                **form,
            },
            self.update_timeout,
        )

    async def end_update(self) -> None:
        if self.needs_begin_end:
            await self._connection.call("/end_weight_update", {}, self.control_timeout)

    async def digest(self) -> str:
        """Checksum of the weights that are served: the server's own digest, or one over all that it reports; '' from an old server
        that has none."""
        if not (await self.abilities()).checksums:
            return ""
        try:
            reply = await self._connection.call("/weights_checker", {"action": "checksum"}, self.update_timeout)
        except EngineFault:
            raise
        except EngineError as error:
            if "Unsupported action" not in error.message:
                raise
            self._abilities = replace(await self.abilities(), checksums=False)
            return ""
        for key in ("digest", "checksum"):
            if isinstance(reply.get(key), str):
                return str(reply[key])
        told = {key: value for key, value in reply.items() if key not in ("message", "success")}
        if not told:
            raise EngineError(f"told no checksum of its weights: {reply}", origin=self.name)
        return hashlib.sha256(orjson.dumps(told, option=orjson.OPT_SORT_KEYS)).hexdigest()

    async def served_version(self) -> int | None:
        """The version the server says it serves; None if its label is not one of ours."""
        return read_version((await self._info(self.control_timeout)).get("weight_version"), self.initial_version)

    async def set_version_label(self, version: int) -> None:
        """Label the weights, aborting nothing (the server's default would abort everything in flight)."""
        if (await self.abilities()).labels:
            await self._connection.call(
                "/update_weight_version", {"new_version": str(version), "abort_all_requests": False}, self.control_timeout
            )

    async def flush_cache(self) -> None:
        """Drop cached prefixes; the server waits up to 20 s for a moment without running requests, else refuses."""
        await self._connection.call("/flush_cache?timeout=20", {}, self.control_timeout)

    async def abort_all(self) -> None:
        """End every request in flight with what it has."""
        await self._connection.call("/abort_request", {"rid": "", "abort_all": True}, self.control_timeout)

    async def look(self) -> dict[str, Any]:
        """Return what the server says of itself; raises `EngineError` when it does not answer.

        Never asks `/health`, which a paused server answers with 503 after 20 s.
        """
        return await self._info(HEALTH_TIMEOUT)

    async def load(self) -> Load | None:
        """Return how loaded the server says it is; None if it doesn't say."""
        if not (await self.abilities()).loads:
            return None
        try:
            return read_load(await self._connection.call("/v1/loads", None, HEALTH_TIMEOUT, "GET"))
        except (LookupError, TypeError, ValueError):
            return None

    async def reachable(self) -> bool:
        """Whether a server answers at all."""
        try:
            await self.look()
        except EngineError:
            return False
        return True

    async def healthy(self) -> bool:
        """Whether the server answers and serves the version it should (a restarted one would not). While paused, nothing changes."""
        try:
            info = await self.look()
        except EngineError:
            return False
        if self.paused:
            return self.alive
        return not self.unfit and read_version(info.get("weight_version"), self.initial_version) in (None, self.version)

    async def _info(self, timeout: float) -> dict[str, Any]:
        path = (await self.abilities(timeout)).info_path
        return await self._connection.call(path, None, timeout, "GET")

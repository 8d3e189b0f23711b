"""An engine as core sees it: what it is asked and answers, how its server is started, what it can do.

`EngineClient` (HTTP) and the simulation's scripted engine both satisfy `Engine`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from asyncrl.samples import Completion, SamplingParams, TokenIds

PauseMode = Literal["retract", "in_place"]


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One completion to generate. `affinity` is equal for requests that share their prompt (a group). An engine that can
    (`ServerSpec.takes_seeds`) draws from `seed` alone, in [0, 2^53); -1 leaves it to the engine."""

    token_ids: TokenIds
    params: SamplingParams
    affinity: int
    seed: int = -1


@dataclass(frozen=True)
class EngineNeeds:
    """What one engine occupies."""

    gpus: float = 0
    cpus: float = 1


@dataclass(frozen=True)
class EnginePlace:
    """Where one engine's server shall run. `api_key` is what every request to it must carry as its bearer token; '' where all may ask.
    Put it into the server's environment, never into its command line, which other users of the machine see."""

    index: int
    model: Path
    host: str
    port: int
    device: str
    dtype: str
    seed: int
    log_file: Path
    api_key: str = field(default="", repr=False)


@dataclass(frozen=True)
class ServerSpec:
    """How to start a server, and what it can do.

    Attributes:
        argv: command line; empty to attach to a server that runs already at `url`.
        env: variables to set beside the inherited ones.
        url: where it will answer.
        start_timeout: seconds until it must be healthy.
        comparable_digest: whether its weight checksum equals the trainer's for equal weights (else only changes are checked).
        needs_begin_end: whether updates go between `/begin_weight_update` and `/end_weight_update`.
        drops_stale_prefixes: whether an update `in_place` leaves no cached prefix of the old weights to later requests.
        takes_seeds: whether a request may carry `sampling_seed`, on which alone its random numbers depend.
        takes_packed: whether `/update_weights_from_distributed` knows the `load_format` ``flattened_bucket``: a bucket as one tensor
            of bytes. Both this and `needs_begin_end` count only where the server lists no API of its own (``/openapi.json``).
        weight_ranks: how many ranks it takes in a weight group, one for each device that holds a part of the model; 0 if it can't join.
        api_key: what requests must carry as their bearer token; '' for nothing. Of a server that is started, the place's.
    """

    argv: tuple[str, ...]
    url: str
    env: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold keys
    start_timeout: float = 120.0
    comparable_digest: bool = True
    needs_begin_end: bool = True
    drops_stale_prefixes: bool = True
    takes_seeds: bool = False
    takes_packed: bool = False
    weight_ranks: int = 1
    api_key: str = field(default="", repr=False)


@dataclass(frozen=True)
class FrontPlace:
    """Where the process in front of the engines shall run: at `port` of `host`, beside its only client.

    Attributes:
        spare_port: free too, for whatever else it listens at.
        request_timeout: seconds that a request may take; it must have at least as much patience.
    """

    host: str
    port: int
    spare_port: int
    request_timeout: float


@dataclass(frozen=True)
class FrontSpec:
    """How to start a process that spreads requests over the engines. It speaks the API of SGLang's router: ``/generate``, with a
    group's key in the header ``X-SMG-Routing-Key``, and ``/workers`` to list, add and remove engines. It shall neither look at their
    health nor try requests again: both are core's.

    Attributes:
        argv: command line; empty where there is none, and requests go to the engines themselves.
        env: variables to set beside the inherited ones.
        url: where it will answer.
        start_timeout: seconds until it must answer.
    """

    argv: tuple[str, ...]
    url: str
    env: Mapping[str, str] = field(default_factory=dict)
    start_timeout: float = 120.0


NO_FRONT = FrontSpec((), "")
"""Requests go to the engines themselves."""


@dataclass(frozen=True)
class Launch:
    """How a server is started outside the cluster's placement, beside the controller.

    Attributes:
        devices: what ``CUDA_VISIBLE_DEVICES`` becomes; '' leaves it alone.
        port: 0 takes a free one.
        server_args: put behind the server's own arguments.
        python: interpreter to start it with; '' is the one that the engine plugin takes.
    """

    devices: str = ""
    port: int = 0
    server_args: tuple[str, ...] = ()
    python: str = ""


@dataclass(frozen=True)
class EngineSet:
    """Engines of one kind: which plugin serves, with what options, how many, and where.

    Attributes:
        engine: name of the engine plugin.
        options: the plugin's options as in a run's file, and ``dtype``, which is core's.
        count: how many engines.
        parallel_sizes: those of the options that say over how many devices one engine is spread.
        launch: how the one server is started outside the cluster's placement; None for engines that the cluster places.
        urls: of running servers to attach to; nothing is started then.
        api_key: what those servers require.
    """

    engine: str
    options: Mapping[str, Any]
    count: int
    parallel_sizes: tuple[str, ...] = ()
    launch: Launch | None = None
    urls: tuple[str, ...] = ()
    api_key: str = field(default="", repr=False)

    def derive(self, count: int, overrides: Mapping[str, Any]) -> EngineSet:
        """Return `count` engines with the same options, except for `overrides`. Where they change a parallel size, the parallel sizes
        that they don't name fall back to 1: an engine of another size can't be spread as the old one was."""
        options = {**self.options, **overrides}
        if any(self.options.get(name, 1) != options.get(name, 1) for name in self.parallel_sizes):
            options.update({name: 1 for name in self.parallel_sizes if name not in overrides and name in options})
        return replace(self, options=options, count=count)

    def launched(self, launch: Launch) -> EngineSet:
        """Return one engine with the same options, started outside the cluster's placement."""
        return replace(self, count=1, launch=launch)

    def attached(self, urls: Sequence[str], api_key: str = "") -> EngineSet:
        """Return the servers that run already at `urls`, and require `api_key`."""
        return replace(self, count=len(urls), urls=tuple(urls), launch=None, api_key=api_key)


@dataclass(frozen=True)
class WeightBucket:
    """Tensors that travel in one collective update, in this order. dtypes are torch names such as ``float32``."""

    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def can_be_packed(self) -> bool:
        """Whether its tensors fit one behind the other into one tensor of bytes: of one dtype, each begins where that dtype may."""
        return len(set(self.dtypes)) == 1


class Engine(Protocol):
    """One engine. Every method that talks to the server has a deadline and raises `EngineError` past it."""

    name: str
    version: int
    alive: bool

    @property
    def in_flight(self) -> int:
        """Requests that were sent and not answered."""
        ...

    @property
    def busy_seconds(self) -> float:
        """Seconds so far with at least one request in flight."""
        ...

    async def generate(self, request: GenerateRequest) -> Completion:
        """Generate once; transient failures are the pool's to retry. Raises `EngineError`."""
        ...

    async def pause(self, mode: PauseMode) -> None:
        """Stop generating between two tokens; what is in flight stays in flight."""
        ...

    async def resume(self) -> None: ...

    async def load_from_disk(self, path: Path, version: int, *, flush_cache: bool) -> None:
        """Replace the weights by those of a Hugging Face directory and count as `version` from the next token on."""
        ...

    async def join_weight_group(
        self, *, address: str, port: int, rank: int, world_size: int, name: str, backend: str
    ) -> None: ...

    async def leave_weight_group(self, name: str) -> None: ...

    async def begin_update(self) -> None: ...

    async def receive_bucket(self, bucket: WeightBucket, *, group: str, version: int, flush_cache: bool, packed: bool) -> None:
        """Receive one bucket, in one broadcast if it is `packed`, else one broadcast a tensor."""
        ...

    async def end_update(self) -> None: ...

    async def digest(self) -> str:
        """Checksum of the weights that are served."""
        ...

    async def flush_cache(self) -> None: ...

    async def healthy(self) -> bool: ...


class Generates(Protocol):
    """Something that routes requests over engines: the pool, or a test's double."""

    engines: Sequence[Engine]

    async def generate(self, request: GenerateRequest) -> Completion: ...

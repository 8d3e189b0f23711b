"""Core's own options: what every run has, whichever plugins it uses."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ByteSize, ConfigDict, Field, model_validator

from asyncrl.network import LOOPBACK


class Contradiction(ValueError):
    """Options that cannot go together. `options` are their names; `remedy` is what would be right."""

    def __init__(self, message: str, *, options: tuple[str, ...], remedy: str) -> None:
        super().__init__(message)
        self.options = options
        self.remedy = remedy


def _cache_dir() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "asyncrl"


def _no_abort(value: Any) -> Any:
    if value == "abort":
        raise Contradiction(
            "abort would kill work at every publication, because requests are always in flight in an asynchronous run",
            options=("publish_mode",),
            remedy="use retract, which puts requests back into the queue, or in_place, which freezes them",
        )
    return value


def _top_k(value: int) -> int:
    if value == 0:
        raise ValueError("top_k 0 would leave no token to sample; -1 is off")
    return value


def _address(value: str) -> str:
    try:
        return str(ipaddress.IPv4Address(value))
    except ValueError:
        raise ValueError(f"{value!r} is no IPv4 address") from None


class RunOptions(BaseModel):
    """Options of the core; the names are those of `config.toml`, and of flags with dashes."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    # The run
    model: Path | None = Field(None, description="Hugging Face model directory to train; none is the task's own model.")
    name: str = Field(
        "",
        pattern=r"^(\w[\w.-]*)?$",
        max_length=200,
        description="Name of the run and its directory; empty is the file's name plus time.",
    )
    runs_dir: Path = Field(Path("runs"), description="Directory in which the run's directory is made.")
    cache_dir: Path = Field(
        default_factory=_cache_dir,
        description="Directory for what is kept between runs, such as a task's own model.",
        json_schema_extra={"default": "$XDG_CACHE_HOME/asyncrl, or ~/.cache/asyncrl"},
    )
    seed: int = Field(0, ge=0, description="Seed of everything random.")
    steps: int = Field(100, ge=1, description="Training steps; each consumes one batch.")

    # Batches and sampling
    batch_size: int = Field(16, ge=1, description="Groups (prompts) a training step consumes.")
    group_size: int = Field(8, ge=1, description="Samples of each prompt.")
    max_concurrent_samples: int | None = Field(
        None, ge=1, description="Cap on samples in flight, at least one group; none is one batch of samples."
    )
    temperature: float = Field(1.0, gt=0, description="Sampling temperature.")
    top_p: float = Field(1.0, gt=0, le=1, description="Sample from the most probable tokens up to this total probability.")
    top_k: Annotated[int, BeforeValidator(_top_k)] = Field(
        -1, ge=-1, description="Sample from this many most probable tokens; -1 is off."
    )
    max_new_tokens: int = Field(256, ge=1, description="Most tokens a completion may have.")
    max_sample_tokens: int | None = Field(
        None,
        ge=1,
        description="Most tokens a sample may have after its prompt, over all of its turns; a longer one is cut there and counted. None is "
        "max_new_tokens.",
    )
    buffer_bytes: ByteSize = Field(
        ByteSize(0),
        description="Memory that the finished groups in the buffer may take, such as 2GiB, beside the buffer's own capacity in groups; "
        "0 is no limit.",
    )
    on_unused: Literal["drop", "retry"] = Field(
        "drop", description="What happens to the prompt of an aborted or stale group: dropped, or issued again."
    )
    max_retries: int = Field(
        3, ge=0, description="How often a failed sample is generated again, and an unused prompt issued again."
    )

    # Processes
    num_engines: int = Field(1, ge=1, description="Engine processes that generate.")
    trainer_ranks: int = Field(1, ge=1, description="Trainer processes.")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="Where models run; auto is cuda where there is a GPU.")
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="Precision of the engines' weights.")
    bind: Annotated[str, AfterValidator(_address)] = Field(
        LOOPBACK,
        description="IPv4 address to which servers are bound; 0.0.0.0 is every one of their node. With any but loopback, they "
        "require a key that is made for the run.",
    )
    base_port: int = Field(0, ge=0, le=65535, description="Port of the first engine, the others follow; 0 takes free ones.")
    ray_address: str = Field("", description="Ray cluster to join; empty starts a private one on this machine.")

    # Publication
    publish_interval: int = Field(1, ge=1, description="Training steps between two publications of the weights.")
    publish_method: Literal["disk", "broadcast"] = Field(
        "disk", description="How weights reach the engines: through a directory, or a torch.distributed group."
    )
    publish_mode: Annotated[Literal["retract", "in_place"], BeforeValidator(_no_abort)] = Field(
        "retract",
        description="What a publication does to requests in flight: back into the queue with their KV cache recomputed, or "
        "frozen and resumed on the old cache.",
    )
    publish_dir: Path = Field(Path("/dev/shm"), description="Directory for publication by disk; best one in memory.")

    # Evaluation and checkpoints
    eval_interval: int = Field(0, ge=0, description="Steps between two evaluations; 0 is off.")
    eval_before_training: bool = Field(True, description="Whether to evaluate the initial weights too.")
    eval_samples: int = Field(
        4, ge=0, description="Completions of each held-out set that an evaluation keeps as text, of the same prompts each time."
    )
    eval_sets: tuple[str, ...] = Field((), description="Which of the task's held-out sets are evaluated; empty is all.")
    eval_timeout: float = Field(1800.0, gt=0, description="Seconds that an evaluation may take before it is given up.")
    eval_snapshots: Literal["export", "checkpoints"] = Field(
        "export",
        description="Where a backend that needs a snapshot gets it: exported for the evaluation, or from the run's checkpoints.",
    )
    staging_dir: Path = Field(Path("/dev/shm"), description="Directory for exported snapshots; best one in memory.")
    keep_snapshots: int = Field(
        2, ge=0, description="How many exported snapshots are kept after their evaluation, until the run ends."
    )
    eval_max_in_flight: int = Field(2, ge=1, description="Evaluations that may be pending while training goes on.")
    eval_overflow: Literal["backpressure", "skip"] = Field(
        "backpressure",
        description="When one evaluation more is due: training waits for the oldest, or the new one is recorded as busy.",
    )
    save_interval: int = Field(0, ge=0, description="Steps between two checkpoints; 0 saves only at the end.")
    keep_checkpoints: int = Field(2, ge=1, description="How many checkpoints are kept; older ones are deleted.")

    trace_groups: int = Field(
        10_000,
        ge=0,
        description="How many finished groups, from the first on, are recorded in trace.jsonl: lengths, times and rewards for "
        "`asyncrl simulate`; 0 is off.",
    )

    log_bytes: ByteSize = Field(
        ByteSize(64 * 2**20),
        description="Size at which log.txt, and what each server says, begins anew; one older file of each is kept. 0 is never.",
    )
    trace_hooks: bool = Field(
        False,
        description="Whether every hook call is written down with plugin, arguments in short, answer and duration: to hooks/ in the run's "
        "directory, one file a process; by a simulation to stderr.",
    )

    # Patience
    publish_timeout: float = Field(120.0, gt=0, description="Seconds that a publication may take.")
    request_timeout: float = Field(600.0, gt=0, description="Seconds that one generation request may take.")
    start_timeout: float = Field(300.0, gt=0, description="Seconds in which every process must have started.")
    trainer_timeout: float = Field(
        1800.0,
        gt=0,
        description="Seconds that one call of the trainer (a step, an export, a checkpoint) may take, and a rank may wait for the others, "
        "before the trainer counts as hanging.",
    )
    engine_hang_timeout: float = Field(
        60.0,
        gt=0,
        description="Seconds without an answer after which an engine's server counts as hanging, and is started again.",
    )
    max_engine_restarts: int = Field(
        3, ge=0, description="How often each engine's server is started again after it died or hung; 0 is never."
    )
    max_restarts: int = Field(
        3,
        ge=0,
        description="How often in all a run makes its rollout actor or its trainer anew after a process of theirs died or hung, the "
        "trainer from the newest checkpoint; 0 is never.",
    )
    watchdog_timeout: float = Field(
        600.0,
        ge=0,
        description="Seconds without a step, token, group, publication or evaluation after which the stacks of every process are written "
        "to the run's logs/, with what is waited for; the run goes on. 0 is never.",
    )
    wait_warning: float = Field(30.0, gt=0, description="Seconds after which a wait says what it waits for, again and again.")

    @property
    def concurrency(self) -> int:
        """The cap on samples in flight."""
        return self.max_concurrent_samples or self.batch_size * self.group_size

    @model_validator(mode="after")
    def _fits_together(self) -> RunOptions:
        if self.concurrency < self.group_size:
            raise Contradiction(
                f"max_concurrent_samples = {self.concurrency} cannot hold one group of group_size = {self.group_size} samples",
                options=("max_concurrent_samples", "group_size"),
                remedy=f"max_concurrent_samples must be at least {self.group_size}",
            )
        if self.max_sample_tokens is not None and self.max_sample_tokens < self.max_new_tokens:
            raise Contradiction(
                f"max_sample_tokens = {self.max_sample_tokens} cuts what max_new_tokens = {self.max_new_tokens} has generated",
                options=("max_sample_tokens", "max_new_tokens"),
                remedy=f"max_sample_tokens must be at least {self.max_new_tokens}",
            )
        if self.on_unused == "retry" and self.max_retries == 0:
            raise Contradiction(
                "on_unused = retry issues nothing again with max_retries = 0",
                options=("on_unused", "max_retries"),
                remedy="use a max_retries of at least 1, or on_unused = drop",
            )
        last = self.base_port + self.num_engines - 1
        if self.base_port and last > 65535:
            raise Contradiction(
                f"base_port = {self.base_port} leaves no ports for num_engines = {self.num_engines}: the last would be {last}",
                options=("base_port", "num_engines"),
                remedy=f"base_port can be at most {65536 - self.num_engines}",
            )
        return self

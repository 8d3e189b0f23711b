"""What a plugin author derives from: `Plugin`, its typed `Options`, its declared `Metrics`, and the facts of the run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from asyncrl.metrics import MetricSet


class PluginOptions(BaseModel):
    """Base of a plugin's options: frozen, unknown keys refused, every field with a `Field(description=…)`."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class BufferOptions(PluginOptions):
    """Base of a buffer's options."""

    capacity_factor: float = Field(
        2.0, ge=1.0, description="Capacity in batches: how many finished groups may wait for the trainer."
    )

    def capacity(self, batch_size: int) -> int:
        """Groups the buffer may hold."""
        return max(batch_size, int(self.capacity_factor * batch_size))


class NoMetrics(MetricSet):
    """Declares nothing."""


@dataclass(frozen=True)
class RunFacts:
    """What every plugin may know of the run. Crosses process boundaries.

    `synchronous` is whether the scheduler trains only on samples of the version about to be improved (`lockstep`).
    `max_sample_tokens` 0 stands for `max_new_tokens`, see `token_limit`; `buffer_bytes` and `log_bytes` 0 for no limit.
    `steps` 0 is that nothing is trained, as in `asyncrl eval`.
    `publish_method` is how new weights come to the engines: ``disk``, as always for those that only evaluate, or ``broadcast``.
    Empty `model` stands for the task's own model until it is known; empty `run_dir` for a run that has none (a simulation, a test).
    """

    batch_size: int
    group_size: int
    max_concurrent_samples: int
    steps: int
    seed: int = 0
    publish_interval: int = 1
    publish_method: str = "disk"
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_new_tokens: int = 256
    max_sample_tokens: int = 0
    buffer_bytes: int = 0
    max_retries: int = 3
    on_unused: str = "drop"
    synchronous: bool = False
    device: str = "cpu"
    dtype: str = "float32"
    num_engines: int = 1
    trainer_ranks: int = 1
    model: str = ""
    cache_dir: str = ""
    run_dir: str = ""
    trace_hooks: bool = False
    log_bytes: int = 0

    @property
    def token_limit(self) -> int:
        """Most tokens of a sample after its prompt."""
        return self.max_sample_tokens or self.max_new_tokens

    @property
    def cache_path(self) -> Path:
        return Path(self.cache_dir)


class Plugin:
    """Base of every plugin: a class with `Options`, `Metrics`, and hook implementations marked `@hookimpl`.

    The constructor must be cheap and must not touch the outside world; each process that needs the plugin makes its own.
    """

    Options: ClassVar[type[PluginOptions]] = PluginOptions
    Metrics: ClassVar[type[MetricSet]] = NoMetrics

    hook_api: ClassVar[int] = 1
    """The version of the hooks (`asyncrl.hookspecs.HOOK_API`) for which the plugin was written. Write it down: one that says
    nothing was written for 1."""

    slot: ClassVar[str] = ""
    """Filled in from the entry point when it is loaded."""
    name: ClassVar[str] = ""

    @property
    def needs(self) -> dict[str, str]:
        """Optional hooks that some other active plugin must implement for this one to work, each with the remedy when none does."""
        return {}

    def __init__(self, options: PluginOptions, run: RunFacts) -> None:
        self.options = options
        self.run = run
        self.metrics = self.Metrics(f"{self.slot}/{self.name}")


class SchedulerPlugin(Plugin):
    """Base of schedulers. `synchronous` tells whether nothing is generated while the trainer trains."""

    synchronous: ClassVar[bool] = False


class EnginePlugin(Plugin):
    """Base of engines. `parallel_sizes` are the options that say over how many devices one engine is spread."""

    parallel_sizes: ClassVar[tuple[str, ...]] = ()


class EvalPlugin(Plugin):
    """Base of eval backends.

    `uses_rollout_engines`: submission of new groups stops while a point is evaluated, and the training loop waits for it.
    `needs_snapshot`: whether a point needs the weights in a directory, which is exported or taken from a checkpoint.
    """

    uses_rollout_engines: ClassVar[bool] = False
    needs_snapshot: ClassVar[bool] = True

"""The smallest plugins that load: their hooks are there, their work is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from asyncrl import BufferOptions, Counter, EvalPlugin, MetricSet, Plugin, PluginOptions, SchedulerPlugin, hookimpl
from asyncrl.hookspecs import SLOT_HOOKS
from pydantic import Field, SecretStr, model_validator


def with_hooks(*slots: str) -> Any:
    """Give a class every hook of a slot, by the names and arguments of its contract."""

    def add(kind: type[Plugin]) -> type[Plugin]:
        import inspect

        from asyncrl import hookspecs

        for slot in slots:
            for name in SLOT_HOOKS[slot]:
                spec = getattr(hookspecs, name)
                keyword = "async def" if inspect.iscoroutinefunction(spec) else "def"
                namespace: dict[str, Any] = {}
                arguments = ", ".join(["self", *inspect.signature(spec).parameters])
                exec(f"{keyword} {name}({arguments}): raise NotImplementedError", namespace)
                setattr(kind, name, hookimpl(namespace[name]))
        return kind

    return add


class FileOptions(PluginOptions):
    path: Path = Field(description="The data.")


class TrainerOptions(PluginOptions):
    learning_rate: float = Field(1e-6, ge=0, description="Peak learning rate.")
    schedule: Literal["constant", "cosine"] = Field("constant", description="Course of the learning rate.")
    layers: list[int] = Field([], description="Layers to train.")
    labels: list[str] = Field([], description="Names for the run.")
    environment: dict[str, str] = Field({}, description="Variables of the ranks.")
    compile: bool = Field(False, description="Whether to compile.")
    folder: Path = Field(Path("scratch"), description="Scratch space.")
    limit: int | None = Field(None, ge=1, description="A limit.")
    token: SecretStr | None = Field(None, description="A key of some service.")
    low: float = Field(0.0, description="Lower end.")
    high: float = Field(1.0, description="Upper end.")

    @model_validator(mode="after")
    def _ordered(self) -> TrainerOptions:
        if self.low > self.high:
            raise ValueError(f"low = {self.low} is above high = {self.high}")
        return self


class PriorityOptions(BufferOptions):
    alpha: float = Field(1.0, ge=0, le=2, description="Sharpness.")


class LoggerMetrics(MetricSet):
    lines = Counter("Lines written", unit="lines")


@with_hooks("task")
class ToyTask(Plugin): ...


@with_hooks("task")
class FileTask(Plugin):
    Options = FileOptions


@with_hooks("producer")
class ToyProducer(Plugin): ...


@with_hooks("scheduler")
class ToyScheduler(SchedulerPlugin): ...


@with_hooks("scheduler")
class ToyLockstep(SchedulerPlugin):
    synchronous = True


@with_hooks("buffer")
class ToyBuffer(Plugin):
    Options = BufferOptions


@with_hooks("buffer")
class ToyPriority(Plugin):
    Options = PriorityOptions


@with_hooks("filters")
class ToyFilter(Plugin): ...


@with_hooks("staleness")
class ToyStaleness(Plugin): ...


@with_hooks("engine")
class ToyEngine(Plugin): ...


@with_hooks("trainer")
class ToyTrainer(Plugin):
    Options = TrainerOptions


@with_hooks("eval")
class ToyEval(EvalPlugin): ...


@with_hooks("loggers")
class ToyLogger(Plugin):
    Metrics = LoggerMetrics

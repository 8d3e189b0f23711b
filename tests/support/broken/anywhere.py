"""Plugins that break one rule each of those that hold in every slot; they happen to be buffers."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

from asyncrl import BufferOptions, Counter, Group, MetricSet, PutOutcome, RunFacts, State, Taken, hookimpl
from pydantic import AfterValidator, BaseModel, Field, model_validator

from broken import buffers
from broken.breaking import Broken, breaks


@breaks("")
class Right(buffers.Right): ...


@breaks("test_it_is_installed_under_its_name", plugin="no-such-name")
class IsNotInstalled(Right): ...


@breaks("test_it_loads")
class HasNoStateAtAll(Right):
    Metrics = dict  # type: ignore[assignment]


@breaks("test_its_hooks_match_their_specifications")
class MisspellsAnArgument(Right):
    @hookimpl
    def buffer_put(self, grp: Group) -> PutOutcome:  # type: ignore[override]
        return super().buffer_put(grp)


@breaks("test_no_method_is_nearly_a_hook")
class MisspellsAHook(Right):
    def on_stpe(self, step: int) -> None: ...


@breaks("test_its_options_build_it")
class RefusesItsDefaults(Right):
    def __init__(self, options: BufferOptions, run: RunFacts) -> None:
        super().__init__(options, run)
        raise ValueError("capacity_factor must be 3")


@breaks("test_its_constructor_touches_nothing")
class OpensAFile(Right):
    def __init__(self, options: BufferOptions, run: RunFacts) -> None:
        super().__init__(options, run)
        with open(os.devnull, "w") as file:
            file.write("made")


class CountingOptions(BufferOptions):
    times: Annotated[int, AfterValidator(lambda times: times + 1)] = Field(1, description="How often the options were read.")


@breaks("test_its_options_survive_toml_and_json")
class ChangesWhatIsWritten(Right):
    Options = CountingOptions


class ClampingOptions(BufferOptions):
    share: float = Field(0.5, ge=0.0, le=1.0, description="A share.")

    @model_validator(mode="before")
    @classmethod
    def clamp(cls, values: Any) -> Any:
        return {**values, "share": min(1.0, max(0.0, values["share"]))} if "share" in values else values


@breaks("test_its_options_keep_their_bounds")
class CorrectsItsUser(Right):
    Options = ClampingOptions


class Table(BaseModel):
    depth: int = 1


class NestedOptions(BufferOptions):
    table: Table = Field(Table(), description="A table.")


@breaks("test_every_option_has_a_help_text")
class ExplainsNothingInside(Right):
    Options = NestedOptions


class ForgivingOptions(BufferOptions):
    @model_validator(mode="before")
    @classmethod
    def forgive(cls, values: Any) -> Any:
        return {name: value for name, value in values.items() if name in cls.model_fields}


@breaks("test_unknown_options_are_refused")
class ForgivesTypos(Right):
    Options = ForgivingOptions


class SoftOptions(BufferOptions):
    __setattr__ = object.__setattr__


@breaks("test_its_options_are_frozen")
class MayBeChanged(Right):
    Options = SoftOptions


@breaks("test_a_ray_actor_rebuilds_it")
class WorksAtHomeOnly(Right):
    @hookimpl
    def buffer_size(self) -> int:
        return super().buffer_size() if "pytest" in sys.modules else 7


class BareMetrics(MetricSet):
    puts = Counter("", unit="")


@breaks("test_every_metric_says_what_it_is")
class ExplainsNoMetric(Right):
    Metrics = BareMetrics
    metrics: BareMetrics

    @hookimpl
    def buffer_put(self, group: Group) -> PutOutcome:
        self.metrics.puts.add()
        return super().buffer_put(group)


class MoreMetrics(MetricSet):
    puts = Counter("Groups that were put", unit="groups")
    takes = Counter("Groups that were taken", unit="groups")


@breaks("test_every_declared_metric_is_emitted")
class ForgetsAMetric(Right):
    Metrics = MoreMetrics
    metrics: MoreMetrics

    @hookimpl
    def buffer_put(self, group: Group) -> PutOutcome:
        self.metrics.puts.add()
        return super().buffer_put(group)


@breaks("", rare_metrics={"takes": "only a museum has them"})
class DeclaresARareMetric(ForgetsAMetric): ...


@breaks("test_it_loads")
class LacksAHook(buffers.Plugin):
    @hookimpl
    def buffer_take(self) -> Taken:
        raise NotImplementedError

    @hookimpl
    def buffer_state(self) -> State:
        raise NotImplementedError


ELSEWHERE = {
    "ImportsHeavily": Broken("broken.imports_heavily:Right", "test_importing_it_imports_nothing_heavy"),
    "SaysThatItImportsHeavily": Broken("broken.imports_heavily:Right", "", {"imports": ("jax",)}),
    "ImportsSlowly": Broken("broken.imports_slowly:Right", "test_importing_it_is_quick", {"max_import_ratio": 300.0}),
    "BuildsSlowly": Broken("broken.builds_slowly:Right", "test_its_constructor_is_cheap", {"max_import_ratio": 300.0}),
    "CanNotBeImported": Broken("broken.can_not_be_imported:Right", "test_it_loads"),
}
"""Plugins whose modules must not be imported here."""

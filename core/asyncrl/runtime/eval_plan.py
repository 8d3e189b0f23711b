"""Which engines an eval backend gets of its own: asked of the plugin and checked before anything starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from asyncrl.authoring import RunFacts
from asyncrl.checking import build
from asyncrl.errors import OptionError, PluginFailed, UserError
from asyncrl.evaluation.setup import blocks
from asyncrl.fields import plain, words
from asyncrl.host import Host
from asyncrl.options import RunConfig, Selected
from asyncrl.plugins import PluginSpec, build_host, discover, load
from asyncrl.rollout.engine import EngineNeeds, EnginePlace, EngineSet
from asyncrl.run_file import Given
from asyncrl.run_options import RunOptions
from asyncrl.runtime import preflight

DTYPE = "dtype"
"""Of the options of an `EngineSet` the one that is core's."""


@dataclass(frozen=True)
class EvalEnginePlan:
    """Engines to run for an eval backend.

    Attributes:
        engines: as the backend asked for them.
        spec: their plugin, with their options.
        facts: of the run, as that plugin shall see them.
        needs: what each occupies of the cluster; empty for those that the cluster does not place.
        comparable: whether their checksums can be those of the rollout engines for equal weights.
    """

    engines: EngineSet
    spec: PluginSpec
    facts: RunFacts
    needs: tuple[EngineNeeds, ...]
    comparable: bool


def plan_eval_engines(config: RunConfig, host: Host, facts: RunFacts) -> EvalEnginePlan | None:
    """Ask the eval backend of `host` for its engines; None when it has none of its own.

    Raises:
        UserError: an option does not fit, where it was written; an engine plugin that is not installed; a port that is taken.
        PluginFailed: the answer is no `EngineSet`, or the backend uses the rollout engines.
    """
    if not host.has("eval_engines"):
        return None
    if blocks(host.plugin("eval")):
        raise PluginFailed(f"{host.owner('eval_engines')} has uses_rollout_engines = True and asks for engines of its own")
    engine = next(one for one in config.plugins if one.found.slot == "engine")
    answer = host.one("eval_engines")(rollout=_rollout_engines(engine, facts))
    fault = fault_of(answer)
    if fault:
        raise PluginFailed(f"{host.owner('eval_engines')} answered eval_engines with {fault}")
    engines: EngineSet = answer
    found = discover().pick("engine", engines.engine, config.origins.get("eval.engine", "eval"))
    kind = load(found)
    origins = _Origins(config, {**plain(engine.options, secrets=True), DTYPE: facts.dtype})
    given = {key: origins.given(key, value) for key, value in engines.options.items()}
    dtype = _dtype(given.pop(DTYPE, None), facts.dtype)
    what = f"engine plugin {found.name!r}, which serves evaluations,"
    options = build(kind.Options, given, "eval.engine", what, {}, at=config.origins.get("eval.engine", "eval"))
    spec = Selected(found, kind, options, engines.engine).spec
    own = replace(facts, dtype=dtype, num_engines=engines.count, publish_method="disk")
    plugins = build_host([spec], own)
    try:
        if not engines.urls:  # else nothing is started with these options
            plugins.each("check_run", run=own)
        placed = not engines.launch and not engines.urls
        needs = (plugins.one("engine_needs")(),) * engines.count if placed else ()
    except UserError as error:
        error.origin = ", ".join(origins.of(name.removeprefix("engine.")) for name in error.origin.split(", ") if name)
        raise
    if engines.launch and engines.launch.port:
        preflight.require_port(config.core.bind, engines.launch.port, origin="eval.port")
    return EvalEnginePlan(engines, spec, own, needs, comparable=dtype == facts.dtype)


def require_own_servers(plan: EvalEnginePlan, rollout: Host, facts: RunFacts) -> None:
    """Refuse to evaluate on servers that run already and generate for training: a snapshot would be loaded into them.

    Args:
        rollout: has the engine plugin with which the run generates.
        facts: of the run, as that plugin sees them.
    """
    taken = _attached(rollout, facts)
    if not taken:
        return
    engines = plan.engines
    own = {url.rstrip("/") for url in engines.urls} or _attached(build_host([plan.spec], plan.facts), plan.facts)
    if shared := sorted(taken & own):
        raise OptionError(
            f"evaluations would load their weights into {' and '.join(shared)}, where the rollout generates",
            origin="engine, eval",
            remedy="use --eval shared, or give the evaluations servers of their own",
        )


def _attached(host: Host, facts: RunFacts) -> set[str]:
    """Addresses of the servers that an engine plugin does not start, because they run already."""
    place = EnginePlace(0, Path(facts.model), "127.0.0.1", 0, facts.device, facts.dtype, facts.seed, Path(os.devnull))
    specs = [host.one("engine_server")(place=replace(place, index=index)) for index in range(facts.num_engines)]
    return {spec.url.rstrip("/") for spec in specs if not spec.argv}


def _rollout_engines(engine: Selected, facts: RunFacts) -> EngineSet:
    return EngineSet(
        engine=engine.wanted or engine.found.name,
        options={**plain(engine.options, secrets=True), DTYPE: facts.dtype},
        count=facts.num_engines,
        parallel_sizes=tuple(getattr(engine.kind, "parallel_sizes", ())),
    )


def fault_of(answer: object) -> str:
    """Return what an `eval_engines` answered that can't be run; '' for a right answer."""
    if not isinstance(answer, EngineSet):
        return f"{answer!r}; right is an EngineSet, made of the one it is given"
    if answer.count < 1:
        return f"{answer.count} engines; it takes at least 1"
    if answer.launch and answer.count != 1:
        return f"{answer.count} engines to launch outside the cluster; one can be"
    if answer.launch and answer.urls:
        return "engines to launch and to attach to; one of both can be"
    return ""


def _dtype(given: Given | None, inherited: str) -> str:
    if given is None:
        return inherited
    info = RunOptions.model_fields[DTYPE]
    try:
        checked: str = TypeAdapter[Any](cast(Any, info.annotation)).validate_python(given.value)
    except ValidationError:
        raise OptionError(f"got {given.value!r}, wants {words(info)}", origin=given.origin) from None
    return checked


class _Origins:
    """Where the options of eval engines were written: with the rollout engines', or as overrides."""

    def __init__(self, config: RunConfig, inherited: Mapping[str, Any]) -> None:
        self._config = config
        self._inherited = inherited
        self._overridden: set[str] = set()

    def given(self, key: str, value: Any) -> Given:
        if key not in self._inherited or self._inherited[key] != value:
            self._overridden.add(key)
        file = self._config.file
        return Given(value, self.of(key), file.absolute().parent if file else Path.cwd())

    def of(self, key: str) -> str:
        """Where an option was written, or the name it can be written under."""
        known = self._config.origins
        if key not in self._overridden:
            return known.get(f"engine.{key}") or known.get(key) or f"engine.{key}"
        table = known.get("eval.engine")
        return known.get(f"eval.engine.{key}") or (f"{table}.{key}" if table else f"eval.engine.{key}")

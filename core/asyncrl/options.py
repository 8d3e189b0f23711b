"""A run's configuration: defaults < file < flags, every value checked, every error naming where the value was written."""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.authoring import Plugin, PluginOptions, RunFacts
from asyncrl.checking import build
from asyncrl.errors import OptionError, UserError
from asyncrl.fields import is_switch, plain
from asyncrl.flags import CommandLine, scan
from asyncrl.hook_checks import hook_doubts
from asyncrl.plugins import SLOTS, Catalog, Found, PluginSpec, discover, load
from asyncrl.run_file import SIMULATE, RunFile, read_run_file
from asyncrl.run_options import RunOptions
from asyncrl.selection import SortedFlags, choose, option_key, owners, refuse_strays, sort_flags
from asyncrl.simulation.options import SimulateOptions

SWITCHES = frozenset(name.replace("_", "-") for name, info in RunOptions.model_fields.items() if is_switch(info))


@dataclass(frozen=True)
class Selected:
    """One plugin of a run: where it comes from, its class, its validated options, and how it was asked for."""

    found: Found
    kind: type[Plugin]
    options: PluginOptions
    wanted: str

    @property
    def spec(self) -> PluginSpec:
        options = json.dumps(plain(self.options, secrets=True))
        return PluginSpec(self.found.slot, self.found.name, self.found.distribution, self.found.version, options)


@dataclass(frozen=True)
class RunConfig:
    """Everything a run was asked to do.

    Attributes:
        core: core's own options.
        simulate: those of a simulation; training leaves them alone.
        plugins: the selected plugins, in the order of slots and of selection.
        notes: what the user should be told before the run starts.
        origins: where each value that is not a default was written, by ``steps`` or ``buffer.capacity_factor``.
        file: the run's file.
    """

    core: RunOptions
    simulate: SimulateOptions
    plugins: tuple[Selected, ...]
    notes: tuple[str, ...]
    origins: Mapping[str, str]
    file: Path | None

    @property
    def specs(self) -> tuple[PluginSpec, ...]:
        """What crosses to other processes. Holds secrets."""
        return tuple(plugin.spec for plugin in self.plugins)

    @property
    def classes(self) -> tuple[type[Plugin], ...]:
        return tuple(plugin.kind for plugin in self.plugins)

    def facts(self) -> RunFacts:
        """The facts of the run as far as they were written: `device` may be ``auto``, `model` and `run_dir` empty."""
        core = self.core
        return RunFacts(
            batch_size=core.batch_size,
            group_size=core.group_size,
            max_concurrent_samples=core.concurrency,
            steps=core.steps,
            seed=core.seed,
            publish_interval=core.publish_interval,
            publish_method=core.publish_method,
            temperature=core.temperature,
            top_p=core.top_p,
            top_k=core.top_k,
            max_new_tokens=core.max_new_tokens,
            max_sample_tokens=core.max_sample_tokens or 0,
            buffer_bytes=core.buffer_bytes,
            max_retries=core.max_retries,
            on_unused=core.on_unused,
            synchronous=any(getattr(kind, "synchronous", False) for kind in self.classes if kind.slot == "scheduler"),
            device=core.device,
            dtype=core.dtype,
            num_engines=core.num_engines,
            trainer_ranks=core.trainer_ranks,
            model=str(core.model or ""),
            cache_dir=str(core.cache_dir),
            trace_hooks=core.trace_hooks,
            log_bytes=core.log_bytes,
        )

    def to_dict(self) -> dict[str, Any]:
        """Every option in the shape of a run's file, as JSON data without secrets; of a simulation's only what is not its default."""
        tree: dict[str, Any] = plain(self.core, secrets=False)
        tree |= {key: {} for key, slot in SLOTS.items() if slot.many}
        for plugin in self.plugins:
            options = plain(plugin.options, secrets=False)
            if SLOTS[plugin.found.slot].many:
                tree[plugin.found.slot][plugin.wanted] = options
            else:
                tree[plugin.found.slot] = {"name": plugin.wanted, **options}
        default = plain(SimulateOptions.model_validate({}), secrets=False)
        simulate = {key: value for key, value in plain(self.simulate, secrets=False).items() if value != default[key]}
        ordered = {key: tree[key] for key in [*RunOptions.model_fields, *SLOTS] if key in tree}
        return ordered | ({SIMULATE: simulate} if simulate else {})

    def to_json(self) -> str:
        return json.dumps(self.to_dict())

    def to_toml(self) -> str:
        """A file that gives this configuration again. Without secrets, and without the run's name, which belongs to one run."""
        import tomli_w

        tree = {key: value for key, value in self.to_dict().items() if key != "name"}
        unset = ", ".join(_unset(tree))
        head = f"# Every option of the run{f' {self.core.name}' if self.core.name else ''}; secrets are left out.\n"
        return head + (f"# Unset: {unset}\n" if unset else "") + "\n" + tomli_w.dumps(_without_none(tree))

    def located(self, error: UserError) -> UserError:
        """Return the error with option names in its origin (``a, buffer.b``) replaced by where they were written."""
        names = error.origin.split(", ")
        error.origin = ", ".join(self.origins.get(name, name) for name in names)
        return error


def resolve(file: Path | None, arguments: Sequence[str], catalog: Catalog | None = None) -> RunConfig:
    """Return the configuration of a run.

    Args:
        file: the run's TOML file.
        arguments: flags; without `file`, the file may stand among them.
        catalog: what is installed; looked up by default.

    Raises:
        UserError: unknown plugin or option, wrong type, out of range, contradiction.
        PluginLoadError: a selected plugin is broken.
    """
    return resolve_line(scan(arguments, SWITCHES), file, catalog)


def resolve_line(
    line: CommandLine, file: Path | None = None, catalog: Catalog | None = None, slots: Collection[str] = SLOTS
) -> RunConfig:
    """Like `resolve`, of a command line that has been taken apart.

    Args:
        slots: those that the command fills. A file may choose others too, which are left alone; a flag may not.
    """
    file = run_file_of(line, file)
    content = read_run_file(file, RunOptions.model_fields) if file else RunFile()
    catalog = catalog or discover()
    flags = sort_flags(line.flags, Path.cwd())
    _refuse_other_slots(flags, slots, line.command)
    choices, notes = choose(content, flags, catalog, slots)
    origins: dict[str, str] = {}
    core = build(RunOptions, {**content.core, **flags.core}, "", "the run", origins)  # before imports that may take seconds
    simulate = build(SimulateOptions, {**content.simulate, **flags.simulate}, SIMULATE, "the simulation", origins)
    kinds = [(choice, found, load(found)) for choice, found in choices]
    refuse_strays(content, flags, kinds, command=line.command, own=line.own)
    plugins = []
    for choice, found, kind in kinds:
        key = option_key(found)
        given = {**choice.options, **flags.plugins.pop(key, {})}
        what, elsewhere = f"{found.slot} plugin {found.name!r}", functools.partial(owners, found, catalog=catalog)
        options = build(kind.Options, given, key, what, origins, at=choice.origin, owner=str(found), elsewhere=elsewhere)
        plugins.append(Selected(found, kind, options, choice.wanted))
        notes += [f"{found}: {doubt}" for doubt in hook_doubts(found.slot, kind)]
    return RunConfig(core, simulate, tuple(plugins), tuple(notes), origins, file)


def run_file_of(line: CommandLine, file: Path | None = None) -> Path | None:
    """Return the run's file, which may be named once. Raises `OptionError` for more."""
    files = [*([str(file)] if file else []), *line.positionals]
    if len(files) > 1:
        raise OptionError("unexpected argument", origin=repr(files[1]), remedy="only the run's file stands without a flag")
    return Path(files[0]) if files else None


def _refuse_other_slots(flags: SortedFlags, slots: Collection[str], command: str) -> None:
    given = dict(flags.selections) | {key.partition(".")[0]: next(iter(table.values())) for key, table in flags.plugins.items()}
    for slot, one in given.items():
        if slot not in slots:
            raise OptionError(f"asyncrl {command} has no use for it", origin=one.origin, remedy=f"it uses {', '.join(slots)}")


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list) else value


def _unset(tree: Mapping[str, Any], prefix: str = "") -> list[str]:
    found = []
    for key, value in tree.items():
        if value is None:
            found.append(prefix + key)
        elif isinstance(value, dict):
            found += _unset(value, f"{prefix}{key}.")
    return found

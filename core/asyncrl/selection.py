"""Which plugins a run uses: defaults < file < flags, and what in file and flags belongs to none of them."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from asyncrl.authoring import Plugin
from asyncrl.checking import hint
from asyncrl.errors import OptionError, PluginError
from asyncrl.flags import Flag
from asyncrl.plugins import SLOTS, Catalog, Found, load
from asyncrl.run_file import SIMULATE, Choice, Given, RunFile
from asyncrl.run_options import RunOptions
from asyncrl.simulation.options import SimulateOptions


@dataclass
class SortedFlags:
    """Flags by what they set: core's options, selections by slot, options by slot (or ``slot.name``), a simulation's, and the rest."""

    core: dict[str, Given]
    selections: dict[str, Given]
    plugins: dict[str, dict[str, Given]]
    simulate: dict[str, Given]
    unknown: list[Flag]


def sort_flags(flags: Iterable[Flag], base: Path) -> SortedFlags:
    """Sort flags by what they set; the times that one was given become one list, which one that stands for something else begins anew."""
    sorted_ = SortedFlags({}, {}, {}, {}, [])
    for flag in flags:
        slot, _, rest = flag.name.partition(".")
        option = flag.name.replace("-", "_")
        value = flag.value if flag.value is not None else not flag.negated
        if option in RunOptions.model_fields:
            table = sorted_.core
        elif flag.name in SLOTS:
            table, option = sorted_.selections, flag.name
            if not isinstance(value, str):
                raise OptionError("needs the name of a plugin", origin=flag.shown)
        elif slot == SIMULATE and rest:
            table, option = sorted_.simulate, rest.replace("-", "_")
        elif slot in SLOTS and rest:
            name, _, option = rest.rpartition(".") if SLOTS[slot].many else ("", "", rest)
            table = sorted_.plugins.setdefault(f"{slot}.{name}" if name else slot, {})
            option = option.replace("-", "_")
        else:
            sorted_.unknown.append(flag)
            continue
        before = table[option].value if option in table and not flag.origin else []
        table[option] = Given([*before, value], flag.shown, base, text=True)
    return sorted_


def choose(
    content: RunFile, flags: SortedFlags, catalog: Catalog, only: Collection[str] = SLOTS
) -> tuple[list[tuple[Choice, Found]], list[str]]:
    """Return the selected plugins of all slots, or of `only` some, and notes about options of the file that a flag has put out of use.

    Raises:
        UnknownPlugin, AmbiguousPlugin: a selection means no plugin, or two.
        OptionError: a plugin is selected twice, or two where there is room for one.
    """
    chosen: list[tuple[Choice, Found]] = []
    notes: list[str] = []
    for slot in (slot for slot in SLOTS.values() if slot.key in only):
        written = content.choices.get(slot.key)
        if written is None:
            written = tuple(Choice(name, f"default of {slot.key}") for name in slot.defaults)
        if not slot.many and not written[0].wanted:  # options without a name are the default plugin's
            written = (Choice(slot.defaults[0], written[0].origin, written[0].options),)
        selection = flags.selections.get(slot.key)
        if selection is None:
            found = [(choice, catalog.pick(slot.key, choice.wanted, choice.origin)) for choice in written]
        else:
            found, dropped = _override(slot.key, selection, written, catalog)
            notes += [f"{choice.origin}: its options are not used, {selection.origin} chose otherwise" for choice in dropped]
        names = [one.name for _, one in found]
        for choice, one in found:
            if names.count(one.name) > 1:
                raise OptionError(f"{slot.key} plugin {one.name!r} is selected twice", origin=choice.origin)
        chosen += found
    return chosen, notes


def _override(
    slot: str, selection: Given, written: Sequence[Choice], catalog: Catalog
) -> tuple[list[tuple[Choice, Found]], list[Choice]]:
    """Apply a flag's selection, ``none`` being none; options of the file go only to the very plugin they were written for."""
    texts = selection.value
    names = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    if not SLOTS[slot].many:
        names = list(dict.fromkeys(names))
        if len(names) > 1:
            raise OptionError(f"{slot} takes one plugin, got {' and '.join(names)}", origin=selection.origin, remedy="choose one")
        names = names or texts[-1:]
    elif names == ["none"] and "none" not in [found.name for found in catalog.of(slot)]:
        names = []
    picked = [(name, catalog.pick(slot, name, selection.origin)) for name in names]
    kept: dict[Found, Choice] = {}
    for choice in written:
        if choice.options:
            for _, found in picked:
                distribution, _, name = choice.wanted.rpartition(":")
                if found.name == name and distribution in ("", found.distribution):
                    kept[found] = choice
    found_choices = [
        (Choice(name, selection.origin, kept[found].options if found in kept else {}), found) for name, found in picked
    ]
    return found_choices, [choice for choice in written if choice.options and choice not in kept.values()]


def option_key(found: Found) -> str:
    """Return where a plugin's options are written: ``buffer``, or ``filters.reward-variance`` in a slot of many."""
    return f"{found.slot}.{found.name}" if SLOTS[found.slot].many else found.slot


def refuse_strays(
    content: RunFile,
    flags: SortedFlags,
    kinds: Sequence[tuple[Choice, Found, type[Plugin]]],
    *,
    command: str = "train",
    own: Sequence[str] = (),
) -> None:
    """Raise for a key or flag that names nothing, suggesting any option that the run does have, or flag of the command's `own`."""
    otherwise = f"asyncrl {command} --help lists them"
    options = [*RunOptions.model_fields, *SLOTS, *(f"{SIMULATE}.{option}" for option in SimulateOptions.model_fields)]
    options += [f"{option_key(found)}.{option}" for _, found, kind in kinds for option in kind.Options.model_fields]
    for given in content.unknown:
        name = given.origin.rpartition(": ")[2]
        if isinstance(given.value, dict) and (near := difflib.get_close_matches(name, [*SLOTS, SIMULATE], n=1)):
            raise OptionError("there is no such table", origin=given.origin, remedy=f"did you mean [{near[0]}]?")
        raise OptionError("there is no such option", origin=given.origin, remedy=hint(name, options, "", otherwise=otherwise))
    for flag in flags.unknown:
        if flag.name in (SIMULATE, f"{SIMULATE}."):
            remedy = f"write --{SIMULATE}.OPTION VALUE, as in --{SIMULATE}.steps 3; asyncrl simulate --help lists the options"
            raise OptionError("which option of the simulation?", origin=flag.shown, remedy=remedy)
        remedy = hint(flag.name, [*options, *own], "--", otherwise=otherwise)
        raise OptionError("there is no such option", origin=flag.shown, remedy=remedy)
    active = [option_key(found) for _, found, _ in kinds]
    for key, table in flags.plugins.items():
        if key not in active:
            origin = next(iter(table.values())).origin
            slot, _, name = key.partition(".")
            if not SLOTS[slot].many:
                stray = f"{key}.{next(iter(table))}"
                raise OptionError(
                    "there is no such option", origin=origin, remedy=hint(stray, options, "--", otherwise=otherwise)
                )
            remedy = f"select it with --{slot} {name}" if name else f"write --{slot}.NAME.OPTION"
            raise OptionError(
                f"{slot} plugin {name!r} is not selected" if name else "which plugin?", origin=origin, remedy=remedy
            )


def owners(found: Found, option: str, catalog: Catalog) -> list[str]:
    """Return the names of the other plugins of a slot that have an option; a broken one has none. Imports them."""
    names: dict[str, None] = {}
    for other in catalog.of(found.slot):
        with contextlib.suppress(PluginError):
            if other.name != found.name and option in load(other).Options.model_fields:
                names[other.name] = None
    return list(names)

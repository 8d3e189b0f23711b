"""What `--compare` and `--sweep` ask for: several configurations of one run, each as the flags that make it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from asyncrl.checking import hint
from asyncrl.errors import OptionError
from asyncrl.flags import Flag
from asyncrl.options import RunConfig
from asyncrl.plugins import SLOTS
from asyncrl.run_file import SIMULATE
from asyncrl.run_options import RunOptions
from asyncrl.simulation.options import SimulateOptions
from asyncrl.simulation.task import REAL_SLOTS


@dataclass(frozen=True)
class Axis:
    """One thing that differs between variants: a slot, or an option by its flag's name without dashes."""

    name: str
    values: tuple[str, ...]

    @property
    def short(self) -> str:
        return self.name.rpartition(".")[2]


@dataclass(frozen=True)
class Variant:
    """One configuration. `settings` are (axis, value); there are none when nothing is compared."""

    settings: tuple[tuple[str, str], ...] = ()
    flags: tuple[Flag, ...] = ()

    @property
    def label(self) -> str:
        """Short and for people: ``paced``, ``max-staleness=2``, ``paced, max-staleness=2``."""
        return ", ".join(value if name in SLOTS else f"{name.rpartition('.')[2]}={value}" for name, value in self.settings)

    @property
    def full(self) -> str:
        """As written: ``scheduler=paced, staleness.max-staleness=2``."""
        return ", ".join(f"{name}={value}" for name, value in self.settings)


def read_axis(flag: Flag) -> Axis:
    """Read the value of one `--compare` or `--sweep`: ``SLOT=NAME,…`` or ``OPTION=VALUE,…``.

    Raises:
        OptionError: it is not written so, has no or doubled values, or names what no simulation has.
    """
    example = "buffer.capacity-factor=1,2,4" if flag.name == "sweep" else "scheduler=sample,group"
    if flag.negated:
        raise OptionError(f"{flag.name} is no switch", origin=flag.shown, remedy=f"write it as --{flag.name} {example}")
    name, equals, text = (flag.value or "").partition("=")
    name = name.strip().replace("_", "-")
    if not equals or not name:
        raise OptionError(f"got {flag.value or ''!r}", origin=flag.shown, remedy=f"write it as {flag.shown} {example}")
    values = tuple(value.strip() for value in text.split(","))
    origin = f"{flag.shown} {flag.value}"
    if not all(values):
        raise OptionError("a value is empty", origin=origin, remedy=f"write it as {flag.shown} {example}")
    for value in values:
        if values.count(value) > 1:
            raise OptionError(f"{value!r} is there twice", origin=origin)
    _require_simulated(name, flag.name, origin)
    return Axis(name, values)


def _require_simulated(name: str, verb: str, origin: str) -> None:
    slot, dot, _ = name.partition(".")
    if slot in SLOTS and slot not in REAL_SLOTS:
        what = f"the {slot} is" if not SLOTS[slot].many else f"{slot} are"
        raise OptionError(f"{what} not part of a simulation", origin=origin, remedy=f"what is: {', '.join(REAL_SLOTS)}")
    if slot in SLOTS and not dot and verb == "sweep":
        raise OptionError("plugins are compared, options are swept", origin=origin, remedy=f"use --compare {name}=…")
    options = [*RunOptions.model_fields, *(f"{SIMULATE}.{option}" for option in SimulateOptions.model_fields)]
    known = slot in SLOTS or name.replace("-", "_") in options
    if not known:
        spelled = [option.replace("_", "-") for option in (*options, *REAL_SLOTS)]
        remedy = hint(name, spelled, "", otherwise="asyncrl simulate --help lists them")
        raise OptionError("there is no such slot or option", origin=origin, remedy=remedy)


def make_variants(flags: Sequence[Flag]) -> list[Variant]:
    """Return every combination of the values of `--compare` and `--sweep`; one variant without settings when there are none.

    Raises:
        OptionError: a flag is wrong, or two of them vary the same thing.
    """
    axes: list[tuple[Axis, Flag]] = []
    for flag in flags:
        axis = read_axis(flag)
        if any(axis.name == other.name for other, _ in axes):
            raise OptionError(f"{axis.name} is varied twice", origin=f"{flag.shown} {flag.value}")
        axes.append((axis, flag))
    variants = []
    for values in itertools.product(*(axis.values for axis, _ in axes)):
        settings = tuple((axis.name, value) for (axis, _), value in zip(axes, values, strict=True))
        made = tuple(
            Flag(axis.name, _value(axis.name, value), origin=f"{flag.shown} {axis.name}={value}")
            for (axis, flag), value in zip(axes, values, strict=True)
        )
        variants.append(Variant(settings, made))
    return variants


def refuse_equals(variants: Sequence[Variant], configs: Sequence[RunConfig]) -> None:
    """Raise `OptionError` where two variants, written differently, mean one configuration: ``1`` and ``1.0``."""
    parts = [(config.core, config.simulate, config.specs) for config in configs]
    for second, part in enumerate(parts):
        first = parts.index(part)
        if first != second:
            was, now = variants[first], variants[second]
            other = [(old, flag) for old, new, flag in zip(was.settings, now.settings, now.flags, strict=True) if old != new]
            same = " and ".join(f"{name}={value}" for (name, value), _ in other)
            raise OptionError(f"is the same as {same}", origin=", ".join(flag.origin for _, flag in other))


def _value(name: str, value: str) -> str:
    """In a slot of several, ``none`` selects none and ``a+b`` two."""
    if name in SLOTS and SLOTS[name].many:
        return "" if value == "none" else value.replace("+", ",")
    return value

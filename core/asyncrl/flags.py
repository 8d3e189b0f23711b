"""A command line taken apart before any plugin is known: which flags were given, with what text, and which file."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from asyncrl.errors import OptionError


@dataclass(frozen=True)
class Flag:
    """One flag as it was given. `value` is None when it stood alone; `negated` for ``--no-…``; `origin` is what it stands for when
    somebody wrote something else."""

    name: str
    value: str | None = None
    negated: bool = False
    origin: str = ""

    @property
    def shown(self) -> str:
        if self.origin:
            return self.origin
        return f"--no-{self.name}" if self.negated else f"--{self.name}"


@dataclass(frozen=True)
class CommandLine:
    """`positionals` are the arguments that belong to no flag: the run's file, if all is well. `command` is whose line it is, as in
    ``asyncrl train``, and `own` are the flags that only it has."""

    flags: tuple[Flag, ...] = ()
    positionals: tuple[str, ...] = ()
    help: bool = False
    command: str = "train"
    own: tuple[str, ...] = ()


def scan(arguments: Sequence[str], switches: Collection[str]) -> CommandLine:
    """Take a command line apart.

    A flag starts with two dashes. Its value follows ``=`` or is the next argument, unless that is a flag too, so a negative number is a
    value. A switch takes the next argument only if it is ``true`` or ``false``.

    Args:
        switches: names of boolean flags; of a plugin's options it is not known yet which are boolean.
    """
    flags: list[Flag] = []
    positionals: list[str] = []
    asks_help = False
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument in ("-h", "--help"):
            asks_help = True
        elif argument.startswith("--") and len(argument) > 2:
            name, equals, value = argument[2:].partition("=")
            if equals:
                flags.append(Flag(name, value))
            elif name.startswith("no-"):
                flags.append(Flag(name.removeprefix("no-"), negated=True))
            elif rest and (rest[0] in ("true", "false") if name in switches else not _is_flag(rest[0])):
                flags.append(Flag(name, rest.pop(0)))
            else:
                flags.append(Flag(name))
        elif argument.startswith("-") and len(argument) > 1:
            raise OptionError("flags start with two dashes", origin=argument)
        else:
            positionals.append(argument)
    return CommandLine(tuple(flags), tuple(positionals), asks_help)


def is_on(flags: Sequence[Flag]) -> bool:
    """Whether a switch is on after each time it was given; the last one counts. Raises `OptionError`."""
    if not flags:
        return False
    last = flags[-1]
    if last.value not in (None, "true", "false"):
        raise OptionError(f"got {last.value!r}, wants true or false", origin=last.shown)
    return not last.negated and last.value != "false"


def _is_flag(argument: str) -> bool:
    return argument == "-h" or (argument.startswith("--") and len(argument) > 2)

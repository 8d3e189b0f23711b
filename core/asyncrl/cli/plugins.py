"""`asyncrl plugins`: lists what is installed and shows what one plugin offers; makes, tests and checks plugins."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib import import_module
from typing import TypeVar

from asyncrl.cli.main import Parser
from asyncrl.errors import UnknownPlugin
from asyncrl.plugins import SLOTS, Catalog, Found, discover, implemented, load, nearest, normalized

Number = TypeVar("Number", int, float)

NAME_HELP = "NAME, SLOT:NAME or DISTRIBUTION:NAME"
NEW = "Writes the folder asyncrl-plugin-NAME: a plugin in one file, its tests, pyproject.toml and README. It works as it stands."
TEST = "Exit code: 0 every rule is kept, 1 one is broken, 2 something written is wrong, 3 the plugin can't be loaded."
CHECK = """Each import has a process of its own. Exit code: 0 all is well; 3 a plugin is broken, incompatible, stale (not what the folder
has from which it was installed) or a stray, or two offer the same name."""


def run(arguments: Sequence[str]) -> int:
    """Do what was asked for and return the exit code."""
    parsed = _parser().parse_args(arguments)
    if parsed.command in ("new", "test", "check"):
        code: int = import_module(f"asyncrl.cli.{parsed.command}").run(parsed)
        return code
    catalog = discover()
    if parsed.command == "info":
        print("\n\n".join(describe(found, catalog) for found in matching(catalog, parsed.name, "asyncrl plugins info")))
    elif parsed.json:
        print(json.dumps([{**asdict(found), "default": is_default(found)} for found in catalog.plugins], indent=2))
    else:
        print(table(catalog))
    return 0


def flags_of() -> dict[str, list[str]]:
    """Return the flags of each command below `asyncrl plugins`, as its help shows them."""
    return {
        name: re.findall(r"^  (?:-h, )?(--[a-z-]+)", below.format_help(), re.MULTILINE) for name, below in _parsers()[1].items()
    }


def _parser() -> Parser:
    return _parsers()[0]


def _parsers() -> tuple[Parser, dict[str, Parser]]:
    """The parser, and those of its commands."""
    parser = Parser(prog="asyncrl plugins", description="Installed plugins, and new ones. Listing imports none of them.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    below: dict[str, Parser] = {}

    def add(command: str, help: str, description: str = "") -> Parser:
        text = description or None
        below[command] = commands.add_parser(command, help=help, description=text, prog=f"asyncrl plugins {command}")
        return below[command]

    lister = add("list", "every installed plugin, by slot")
    lister.add_argument("--json", action="store_true", help="as JSON, with each plugin's target")
    about = add("info", "options, metrics and hooks of one plugin")
    about.add_argument("name", help=NAME_HELP)
    new = add("new", "write a distribution with a plugin that works, to start from", NEW)
    new.add_argument("slot", help=f"one of {', '.join(SLOTS)}")
    new.add_argument("name", help="the plugin's name: lower-case words of letters and digits, with dashes between them")
    new.add_argument("--path", default=".", help="folder in which asyncrl-plugin-NAME is made; default: this one")
    new.add_argument("--force", action="store_true", help="take the name although an installed plugin has it")
    test = add("test", "run the tests of the plugin's slot on it", TEST)
    test.add_argument("name", help=NAME_HELP)
    test.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help="an option to build the plugin with")
    test.add_argument(
        "--declare", action="append", default=[], metavar="ATTRIBUTE=VALUE", help="what the plugin promises its suite"
    )
    test.add_argument("-k", metavar="EXPRESSION", help="only the rules whose names match, as pytest has it")
    check = add("check", "import every installed plugin and compare it with its source", CHECK)
    check.add_argument("names", nargs="*", metavar="name", help=f"{NAME_HELP}; none stands for all")
    check.add_argument("--json", action="store_true", help="as JSON, with the seconds of each import and all tracebacks")
    check.add_argument("--timeout", type=_positive(float), default=60.0, help="seconds that one import may take; default 60")
    jobs = min(4, os.cpu_count() or 1)
    check.add_argument("--jobs", type=_positive(int), default=jobs, help=f"imports at the same time; default {jobs}")
    return parser, below


def _positive(kind: type[Number]) -> Callable[[str], Number]:
    def read(text: str) -> Number:
        if not 0 < (value := kind(text)) < math.inf:
            raise ValueError
        return value

    read.__name__ = "positive number"  # argparse puts it into its message
    return read


def is_default(found: Found) -> bool:
    """Whether the plugin is active when nothing is chosen for its slot."""
    return found.name in SLOTS[found.slot].defaults


def table(catalog: Catalog) -> str:
    """Return the list for people; a star marks defaults."""
    head = ("slot", "name", "distribution", "version", "summary")
    rows = [
        (found.slot, found.name + (" *" if is_default(found) else ""), found.distribution, found.version, found.summary)
        for found in catalog.plugins
    ]
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(4)]
    lines = ["  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]]) for row in [head, *rows]]
    lines += ["", "* active when nothing is chosen for its slot; asyncrl plugins info NAME shows options and metrics"]
    warnings = [*catalog.ambiguous().values(), *catalog.strays]
    return "\n".join(line.rstrip() for line in [*lines, *(f"! {warning}" for warning in warnings)])


def matching(catalog: Catalog, wanted: str, command: str) -> list[Found]:
    """Return every plugin that `wanted` may mean: a name can live in several slots and distributions.

    Raises:
        UnknownPlugin: there is none.
    """
    before, colon, name = wanted.rpartition(":")
    if not name or (colon and not before):
        raise UnknownPlugin(f"got {wanted!r}, wants {NAME_HELP}", origin=command)
    found = [one for one in catalog.plugins if one.name == name and (not before or _is_from(one, before))]
    if found:
        return found
    names = sorted({one.name for one in catalog.plugins})
    near = nearest(name, names)
    hint = f"; did you mean {near!r}?" if near else ""
    raise UnknownPlugin(
        f"no plugin {wanted!r} is installed{hint}",
        origin=command,
        remedy=f"installed: {', '.join(names)}" if names else "nothing is installed",
    )


def _is_from(found: Found, before: str) -> bool:
    return before == found.slot or normalized(before) == normalized(found.distribution)


def describe(found: Found, catalog: Catalog) -> str:
    """Return everything one plugin declares, and how it is selected among those of a catalog. Imports it."""
    from asyncrl.cli.describe import hook_lines, metric_lines, metrics_of, option_lines
    from asyncrl.selection import option_key

    kind = load(found)
    return "\n".join(
        [
            f"{found.slot} plugin {found.name}{' (default)' if is_default(found) else ''}{found.and_summary}",
            f"  from {found.distribution} {found.version}, {found.target}",
            f"  {_selected_by(found, catalog)}",
            f"options:\n{option_lines(kind.Options, option_key(found))}",
            f"metrics:\n{metric_lines(metrics_of(kind))}",
            f"hooks:\n{hook_lines(implemented(kind))}",
        ]
    )


def _selected_by(found: Found, catalog: Catalog) -> str:
    ambiguous = catalog.ambiguous().get((found.slot, found.name))
    wanted = f"{found.distribution}:{found.name}" if ambiguous else found.name
    in_file = f'[{found.slot}] name = "{wanted}"'
    if SLOTS[found.slot].many:
        in_file = f'[{found.slot}."{wanted}"]' if ambiguous else f"[{found.slot}.{wanted}]"
    text = f"selected by --{found.slot} {wanted}, or {in_file} in the file"
    return f"{text}\n  not by its name alone: {ambiguous.partition(' (')[0]}" if ambiguous else text

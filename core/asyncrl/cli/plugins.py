"""`asyncrl plugins list` and `asyncrl plugins info NAME`: what is installed, and what one plugin offers."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import asdict

from asyncrl.cli.main import Parser
from asyncrl.errors import UnknownPlugin
from asyncrl.plugins import SLOTS, Catalog, Found, discover, implemented, load, normalized


def run(arguments: Sequence[str]) -> int:
    """Print what was asked for. Returns 0."""
    parser = Parser(prog="asyncrl plugins", description="Installed plugins. Listing imports none of them.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    lister = commands.add_parser("list", help="every installed plugin, by slot", prog="asyncrl plugins list")
    lister.add_argument("--json", action="store_true", help="as JSON, with each plugin's target")
    about = commands.add_parser("info", help="options, metrics and hooks of one plugin", prog="asyncrl plugins info")
    about.add_argument("name", help="NAME, SLOT:NAME or DISTRIBUTION:NAME")
    parsed = parser.parse_args(arguments)
    catalog = discover()
    if parsed.command == "info":
        print("\n\n".join(describe(found) for found in matching(catalog, parsed.name)))
    elif parsed.json:
        print(json.dumps([{**asdict(found), "default": is_default(found)} for found in catalog.plugins], indent=2))
    else:
        print(table(catalog))
    return 0


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
    return "\n".join(line.rstrip() for line in [*lines, *(f"! {stray}" for stray in catalog.strays)])


def matching(catalog: Catalog, wanted: str) -> list[Found]:
    """Return every plugin that `wanted` may mean: a name can live in several slots and distributions.

    Raises:
        UnknownPlugin: there is none.
    """
    before, _, name = wanted.rpartition(":")
    found = [one for one in catalog.plugins if one.name == name and (not before or _is_from(one, before))]
    if found:
        return found
    names = sorted({one.name for one in catalog.plugins})
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise UnknownPlugin(
        f"no plugin {wanted!r} is installed{hint}",
        origin="asyncrl plugins info",
        remedy=f"installed: {', '.join(names)}" if names else "nothing is installed",
    )


def _is_from(found: Found, before: str) -> bool:
    return before == found.slot or normalized(before) == normalized(found.distribution)


def describe(found: Found) -> str:
    """Return everything one plugin declares. Imports it."""
    from asyncrl.cli.describe import hook_lines, metric_lines, metrics_of, option_lines
    from asyncrl.selection import option_key

    kind = load(found)
    return "\n".join(
        [
            f"{found.slot} plugin {found.name}{' (default)' if is_default(found) else ''}: {found.summary}",
            f"  from {found.distribution} {found.version}, {found.target}",
            f"  {_selected_by(found)}",
            f"options:\n{option_lines(kind.Options, option_key(found))}",
            f"metrics:\n{metric_lines(metrics_of(kind))}",
            f"hooks:\n{hook_lines(implemented(kind))}",
        ]
    )


def _selected_by(found: Found) -> str:
    in_file = f"[{found.slot}.{found.name}]" if SLOTS[found.slot].many else f'[{found.slot}] name = "{found.name}"'
    return f"selected by --{found.slot} {found.name}, or {in_file} in the file"

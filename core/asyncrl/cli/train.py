"""`asyncrl train`: reads file and flags, and hands the configuration to the runtime."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from asyncrl.errors import UserError
from asyncrl.flags import CommandLine, scan
from asyncrl.plugins import SLOTS, Catalog, Found, discover

USAGE = "usage: asyncrl train [RUN.toml] [--OPTION VALUE] [--SLOT NAME] [--SLOT.OPTION VALUE]"

LISTS = """A list is JSON, or its flag once for each item; a table is JSON, or its flag once for each KEY=VALUE.
Commas separate only names of plugins, as in --loggers console,jsonl."""


def run(arguments: Sequence[str]) -> int:
    """Train. Returns the exit code of the run; raises `AsyncrlError` for whatever stops it."""
    from asyncrl.options import SWITCHES, resolve

    line = scan(arguments, SWITCHES)
    if line.help:
        print(help_text(line, discover()))
        return 0
    config = resolve(None, arguments)
    from asyncrl.runtime.run import run_training

    try:
        return run_training(config)
    except UserError as error:
        raise config.located(error) from error.__cause__


def help_text(
    line: CommandLine,
    catalog: Catalog,
    *,
    command: str = "train",
    head: Sequence[str] = (USAGE,),
    slots: Collection[str] = SLOTS,
    example: str = "--buffer fifo",
) -> str:
    """Return the help: `head`, core's options, the command's `slots`, and the options of every plugin that file or flags name.

    Only those plugins are imported. A value that is wrong does not keep anybody from the help; a plugin that is unknown does.
    """
    from asyncrl.cli.describe import option_lines
    from asyncrl.plugins import load
    from asyncrl.run_options import RunOptions
    from asyncrl.selection import option_key

    parts = [
        *head,
        f"Defaults come first, then the file, then flags.\n{LISTS}",
        f"core options:\n{option_lines(RunOptions, '')}",
        f"slots, each filled by name:\n{_slot_lines(catalog, slots)}",
    ]
    for found in [found for found in _named(line, catalog) if found.slot in slots]:
        title = f"options of {found.slot} plugin {found.name} ({found.distribution} {found.version}){found.and_summary}"
        parts.append(f"{title}\n{option_lines(load(found).Options, option_key(found))}")
    parts.append(f"The options of a plugin are shown when it is named, as in asyncrl {command} {example} --help.")
    return "\n\n".join(parts)


def _slot_lines(catalog: Catalog, slots: Collection[str]) -> str:
    lines = []
    for slot in [slot for slot in SLOTS.values() if slot.key in slots]:
        names = ", ".join(dict.fromkeys(found.name for found in catalog.of(slot.key))) or "nothing installed"
        flag = f"--{slot.key} {'NAME,…' if slot.many else 'NAME'}"
        lines.append(f"  {flag:<20}  {slot.help}; default {', '.join(slot.defaults) or 'none'}\n{' ' * 8}installed: {names}")
    return "\n".join(lines)


def _named(line: CommandLine, catalog: Catalog) -> list[Found]:
    """The plugins that the file or a flag names, or whose options a flag sets."""
    from asyncrl.options import run_file_of
    from asyncrl.run_file import RunFile, read_run_file
    from asyncrl.run_options import RunOptions
    from asyncrl.selection import choose, option_key, sort_flags

    file = run_file_of(line)
    content = read_run_file(file, RunOptions.model_fields) if file else RunFile()
    flags = sort_flags(line.flags, Path.cwd())
    mentioned = {*content.choices, *flags.selections}
    chosen, _ = choose(content, flags, catalog, only=mentioned | {key.partition(".")[0] for key in flags.plugins})
    return [found for _, found in chosen if found.slot in mentioned or option_key(found) in flags.plugins]

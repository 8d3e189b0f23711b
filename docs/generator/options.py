"""`options.md`: every option of the run, of each first-party plugin, and of a simulation."""

from __future__ import annotations

from asyncrl.fields import default_text, words
from asyncrl.plugins import SLOTS
from asyncrl.run_options import RunOptions
from asyncrl.simulation.options import FaultOptions, SimulateOptions
from pydantic import BaseModel

from generator.markdown import page, table
from generator.plugins import folders, loaded

HEAD = """\
In the run's file an option is a key; as a flag its underscores are dashes: `max_new_tokens = 64`, `--max-new-tokens 64`.
A plugin's options are in the table of its slot: `max_staleness = 2` below `[staleness]`, `--staleness.max-staleness 2`.
Where several plugins may be active the plugin's name follows: `[filters.NAME]`, `--filters.NAME.OPTION`."""
SIMULATE = """\
The `[simulate]` table, which `asyncrl simulate` uses and `asyncrl train` leaves alone. Seconds are virtual."""


def options_page() -> str:
    lines = ["", HEAD, "", "## The run", *_table(RunOptions)]
    for slot in SLOTS.values():
        members = [(found, kind) for found, kind in loaded() if found.slot == slot.key]
        if members:
            default = ", ".join(f"`{name}`" for name in slot.defaults) or "none"
            several = " Several may be active." if slot.many else ""
            lines += ["", f"## {slot.key}", "", f"{slot.help[:1].upper()}{slot.help[1:]}. Default: {default}.{several}"]
        for found, kind in members:
            folder = folders()[found.distribution].parts[-3:]
            readme = f"[{found.distribution}](../../{'/'.join(folder)}/README.md)"
            lines += ["", f"### {slot.key} `{found.name}`", "", f"{found.summary} From {readme}.", *_table(kind.Options)]
    lines += ["", "## simulate", "", SIMULATE, *_table(SimulateOptions)]
    lines += ["", "### `[[simulate.faults]]`", *_table(FaultOptions)]
    return page("Options", lines)


def _table(options: type[BaseModel]) -> list[str]:
    if not options.model_fields:
        return ["", "No options."]
    rows = [
        (f"`{name}`", _as_code(words(info)), default_text(info, portable=True), info.description or "")
        for name, info in options.model_fields.items()
    ]
    return table(("option", "type", "default", "what"), rows)


def _as_code(wanted: str) -> str:
    """Markdown of what an option wants: a pattern is code, else its brackets would be links and footnotes."""
    before, matching, pattern = wanted.partition("matching ")
    return f"{before}{matching}`{pattern}`" if pattern else wanted

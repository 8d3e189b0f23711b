"""`asyncrl simulate`: what a run would do, under a virtual clock, with scripted engines and a scripted trainer."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from asyncrl.errors import OptionError, UserError
from asyncrl.flags import CommandLine, Flag, is_on, scan
from asyncrl.plugins import discover

if TYPE_CHECKING:
    from asyncrl.simulation.report import Outcome
    from asyncrl.simulation.scenario import Scenario
    from asyncrl.simulation.variants import Variant

USAGE = (
    "usage: asyncrl simulate [RUN.toml] [--compare SLOT=NAME,…] [--sweep OPTION=VALUE,…] [--plot FILE] [--json] [flags as train]"
)
OWN = """\
options of the command:
  --compare SLOT=NAME,NAME… or OPTION=VALUE,VALUE…
        One variant a value, side by side, as in --compare scheduler=sample,paced. In a slot of several, NAME+NAME is two, none is none.
  --sweep OPTION=VALUE,VALUE…
        Likewise for an option, as in --sweep buffer.capacity-factor=1,2,4. Several give every combination.
  --plot FILE
        Draw it: a .png, .svg or .pdf. Needs matplotlib: pip install 'asyncrl[plot]'.
  --json, --no-json
        Print one JSON document instead of tables: an object, or a list of them when something is compared."""
OWN_FLAGS = ("compare", "sweep", "plot", "json")
PROGRESS_SECONDS = 0.2


def run(arguments: Sequence[str]) -> int:
    """Simulate and print. Returns 0; raises `AsyncrlError` for whatever stops it."""
    from asyncrl.options import SWITCHES

    line = replace(scan(arguments, SWITCHES | {"json"}), command="simulate", own=OWN_FLAGS)
    own = {name: [flag for flag in line.flags if flag.name == name] for name in OWN_FLAGS}
    rest = replace(line, flags=tuple(flag for flag in line.flags if flag.name not in own))
    if line.help:
        print(_help(rest))
        return 0
    as_json = is_on(own["json"])
    plot = _plot_file(own["plot"])

    from asyncrl.simulation.variants import make_variants, refuse_equals

    variants = make_variants([flag for flag in line.flags if flag.name in ("compare", "sweep")])
    scenarios = [_prepare(rest, variant) for variant in variants]
    refuse_equals(variants, [scenario.config for scenario in scenarios])
    outcomes = [_simulate(scenario, variant) for scenario, variant in zip(scenarios, variants, strict=True)]
    _print(outcomes, as_json=as_json, several=bool(own["compare"] or own["sweep"]))
    if plot is not None:
        from asyncrl.simulation.plot import draw

        draw(outcomes, plot)
    return 0


def _help(line: CommandLine) -> str:
    from asyncrl.cli.describe import option_lines
    from asyncrl.cli.train import help_text
    from asyncrl.run_file import SIMULATE
    from asyncrl.simulation.options import SimulateOptions

    own = f"options of the simulation, or [{SIMULATE}] in the file:\n{option_lines(SimulateOptions, SIMULATE)}"
    return help_text(line, discover(), command="simulate", head=(USAGE, OWN, own))


def _plot_file(flags: Sequence[Flag]) -> Path | None:
    if not flags:
        return None
    from asyncrl.simulation.plot import check_plot

    if flags[-1].negated:
        raise OptionError("plot is no switch", origin=flags[-1].shown, remedy="leave it out, or as in --plot figure.svg")
    if not flags[-1].value:
        raise OptionError("needs a file", origin=flags[-1].shown, remedy="as in --plot figure.svg")
    path = Path(flags[-1].value)
    check_plot(path)
    return path


def _prepare(line: CommandLine, variant: Variant) -> Scenario:
    """Check everything about a variant. Whatever is wrong with one of several names it."""
    from asyncrl.options import resolve_line
    from asyncrl.simulation.scenario import prepare
    from asyncrl.simulation.size import check_bounds, check_memory

    try:
        config = resolve_line(replace(line, flags=(*line.flags, *variant.flags)))
        try:
            check_bounds(config)
            scenario = prepare(config)
            check_memory(scenario)
            return scenario
        except UserError as error:
            raise config.located(error) from error.__cause__
    except UserError as error:
        if variant.settings and not any(flag.origin in error.origin for flag in variant.flags):
            error.origin = f"variant {variant.full}" + (f": {error.origin}" if error.origin else "")
        raise


def _simulate(scenario: Scenario, variant: Variant) -> Outcome:
    from asyncrl.errors import AsyncrlError
    from asyncrl.simulation.report import Outcome

    show = _progress(f"simulating {variant.label}".rstrip(), scenario.facts.steps)
    try:
        with _warnings_at_the_end(variant.label):
            return Outcome(variant, scenario, scenario.run(show))
    except AsyncrlError as error:
        if variant.settings:
            error.origin = f"variant {variant.full}" + (f": {error.origin}" if error.origin else "")
        raise
    finally:
        show(0)


@contextlib.contextmanager
def _warnings_at_the_end(label: str) -> Iterator[None]:
    """Print each kind of warning once, with how often it came: virtual hours may hold many."""
    handler = _Warnings()
    logging.getLogger("asyncrl").addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger("asyncrl").removeHandler(handler)
        for message, count in handler.found.values():
            times = f" ({count} of the kind)" if count > 1 else ""
            print(f"asyncrl: warning: {f'{label}: ' if label else ''}{message}{times}", file=sys.stderr)


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: dict[str, tuple[str, int]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        message, count = self.found.get(record.msg, (record.getMessage(), 0))
        self.found[record.msg] = (message, count + 1)


def _progress(what: str, steps: int) -> Callable[[int], None]:
    """Return what shows the step that is simulated, on a terminal only; step 0 wipes the line."""
    shown, last = False, time.monotonic()

    def show(step: int) -> None:
        nonlocal shown, last
        if sys.stderr is None or not sys.stderr.isatty():
            return
        if step and time.monotonic() - last > PROGRESS_SECONDS:
            shown, last = True, time.monotonic()
            print(f"\r\033[K{what}: step {step} of {steps}", end="", file=sys.stderr, flush=True)
        elif not step and shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    return show


def _print(outcomes: Sequence[Outcome], *, as_json: bool, several: bool) -> None:
    from asyncrl.simulation.report import compare, describe, document

    if as_json:
        documents = [document(outcome) for outcome in outcomes]
        print(json.dumps(documents if several else documents[0], indent=2))
    else:
        for note in dict.fromkeys(note for outcome in outcomes for note in outcome.scenario.notes):
            print(f"note: {note}", file=sys.stderr)
        print(compare(outcomes) if several else describe(outcomes[0]))

"""What simulated runs measured, for people and for programs: one run, several side by side, JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from asyncrl.simulation.measured import Measured
from asyncrl.simulation.scenario import Scenario
from asyncrl.simulation.variants import Variant

BAR = 30


@dataclass(frozen=True)
class Outcome:
    """One variant: what was simulated, and what came of it."""

    variant: Variant
    scenario: Scenario
    measured: Measured


def bound_limit(scenario: Scenario, measured: Measured) -> float:
    """Return the seconds that a step takes at least under a staleness bound for whose groups the trainer waits, if each version starts
    a sample of the longest length; 0 without such a bound.

    That sample (L seconds of generating) may start right after a publication, and must have ended when the trainer takes the last
    batch that may hold it. From that publication until that batch is trained and published are K + 1 versions of i steps each. They must
    hold L, the training of that last batch (R), and a publication each (P), during which the engines stand still. So a step
    takes at least (L + R) / (i (K + 1)) + P / i on average.
    """
    if not scenario.bound_waits or scenario.facts.synchronous:  # a synchronous scheduler starts nothing while training
        return 0.0
    interval = scenario.facts.publish_interval
    spent = measured.seconds_max + measured.limit_training
    return spent / (interval * (scenario.bound + 1)) + scenario.publish_seconds / interval


# One run ----------------------------------------------------------------------------------------------------------------


def describe(outcome: Outcome) -> str:
    """Return the table of one run."""
    measured, scenario = outcome.measured, outcome.scenario
    groups, tokens = measured.groups, measured.tokens
    generation, training = measured.limit_generation, measured.limit_training
    rows = [
        ("simulated", f"{scenario.engines} engine(s) of {scenario.slots} slots, {scenario.lengths_text}"),
        ("steps", f"{measured.steps}, the first {measured.warmup_steps} left out; {measured.seconds:,.1f} s in all"),
        ("step time", f"mean {measured.step_mean:.3f} s, max {max(measured.step_seconds, default=0.0):.3f} s"),
        ("step / limit", f"{measured.over_limit:.3f} of max(generation {generation:.3f} s, training {training:.3f} s)"),
    ]
    if least := bound_limit(scenario, measured):
        steps = scenario.facts.publish_interval * (scenario.bound + 1)
        plain = measured.seconds_max / steps
        rows.append(
            (
                "limit of the bound",
                f"{least:.3f} s a step if every version starts a sample of the longest length: ({measured.seconds_max:.3f} s + "
                f"training) / {steps} + publication; {plain:.3f} s for that sample alone",
            )
        )
    rows += [
        ("busy", f"engine slots {measured.slots_busy:.1%}, trainer {measured.trainer_busy:.1%}"),
        ("longest wait", _wait(measured)),
        ("staleness", f"mean {measured.staleness_mean:.2f}, max {measured.staleness_max}"),
        *(("", line) for line in histogram(measured.staleness)),
        ("oldest token", f"{measured.token_age_max} version(s) older than the weights it trained"),
        ("groups", f"issued {groups['issued']:,}, trained {groups['trained']:,}, unfinished {groups['unfinished']:,}"),
        ("dropped", f"{groups['dropped']:,} ({measured.dropped_share:.1%}): {_reasons(measured.dropped)}"),
        ("tokens", ", ".join(f"{fate} {count:,}" for fate, count in tokens.items())),
        ("lengths", f"trained {measured.length_trained:.1f} / issued {measured.length_issued:.1f} = {_ratio(measured):.3f}"),
        ("longest sample", f"{measured.length_max:,} tokens, {measured.seconds_max:.3f} s"),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"  {name:<{width}}  {value}" for name, value in rows)


def histogram(counts: dict[int, int]) -> list[str]:
    """Return one line with a bar for every value from 0 to the highest one."""
    total, most = sum(counts.values()), max(counts.values(), default=0)
    lines = []
    for value in range(max(counts, default=-1) + 1):
        count = counts.get(value, 0)
        bar = "#" * max(1 if count else 0, round(BAR * count / most))
        lines.append(f"{value:>3}  {bar:<{BAR}} {count / total:6.1%}")
    return lines


def _wait(measured: Measured) -> str:
    step, seconds = measured.longest_wait
    return f"{seconds:.3f} s of the trainer, for step {step}" if step else "none"


def _reasons(dropped: dict[str, int]) -> str:
    return ", ".join(f"{reason} {count:,}" for reason, count in dropped.items() if count) or "none"


def _ratio(measured: Measured) -> float:
    return measured.length_trained / measured.length_issued if measured.length_issued else 0.0


# Several side by side -----------------------------------------------------------------------------------------------------


def compare(outcomes: Sequence[Outcome]) -> str:
    """Return one table with a row a variant, and below it which share of the trained groups had which staleness."""
    head = ("", "step", "/ limit", "bound's", "slots", "trainer", "staleness", "max", "oldest", "dropped", "lengths", "wait")
    rows = [_row(outcome) for outcome in outcomes]
    ages = range(max(outcome.measured.staleness_max for outcome in outcomes) + 1)
    shares = [(outcome.variant.label, *_shares(outcome.measured, ages)) for outcome in outcomes]
    key = [
        "step: mean seconds; / limit: over max(generation, training); bound's: limit of the bound, in seconds a step",
        "slots, trainer: share of time busy; staleness: mean and max of trained groups; oldest: age of any trained token",
        "dropped: share of groups; lengths: trained over issued; wait: longest of the trainer, in seconds",
    ]
    tables = [_table([head, *rows]), _table([("staleness", *(str(age) for age in ages)), *shares])]
    return "\n\n".join([tables[0], "\n".join(f"  {line}" for line in key), tables[1]])


def _row(outcome: Outcome) -> tuple[str, ...]:
    measured = outcome.measured
    least = bound_limit(outcome.scenario, measured)
    return (
        outcome.variant.label,
        f"{measured.step_mean:.3f}",
        f"{measured.over_limit:.3f}",
        f"{least:.3f}" if least else "-",
        f"{measured.slots_busy:.1%}",
        f"{measured.trainer_busy:.1%}",
        f"{measured.staleness_mean:.2f}",
        str(measured.staleness_max),
        str(measured.token_age_max),
        f"{measured.dropped_share:.1%}",
        f"{_ratio(measured):.3f}",
        f"{measured.longest_wait[1]:.2f}",
    )


def _shares(measured: Measured, ages: range) -> list[str]:
    total = sum(measured.staleness.values())
    return [f"{measured.staleness.get(age, 0) / total:.1%}" if total else "-" for age in ages]


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  " + "  ".join(cells))
    return "\n".join(lines)


# For programs -------------------------------------------------------------------------------------------------------------


def document(outcome: Outcome) -> dict[str, Any]:
    """Return everything about one variant as JSON data."""
    measured, scenario = outcome.measured, outcome.scenario
    plain = asdict(measured) | {"staleness": {str(age): count for age, count in sorted(measured.staleness.items())}}
    step, seconds = measured.longest_wait
    return {
        "variant": dict(outcome.variant.settings),
        "simulated": scenario.to_dict(),
        **plain,
        "longest_wait": {"step": step, "seconds": seconds},
        "step_mean": measured.step_mean,
        "limit": measured.limit,
        "over_limit": measured.over_limit,
        "limit_bound": bound_limit(scenario, measured) or None,
        "staleness_mean": measured.staleness_mean,
        "staleness_max": measured.staleness_max,
        "dropped_share": measured.dropped_share,
        "length_ratio": _ratio(measured),
    }

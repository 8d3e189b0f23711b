"""Each rule of each suite fails for a plugin that breaks it, and for that one alone; a right plugin breaks none."""

from __future__ import annotations

from typing import Any

import pytest
from asyncrl.plugins import SLOTS
from asyncrl.testing import SUITES, BaseSuite
from broken.breaking import Broken, marked
from suite_runs import Outcomes, run_suites

pytestmark = [pytest.mark.minutes, pytest.mark.timeout(1800)]

ANYWHERE = "anywhere"
"""Breaks the rules that hold in every slot, as buffers; the rules that start processes are tried on these alone."""
STARTS_PROCESSES = "ray_actor or importing or constructor"
MODULES = {
    ANYWHERE: "buffer",
    "buffers": "buffer",
    "schedulers": "scheduler",
    "staleness": "staleness",
    "filters": "filters",
    "producers": "producer",
    "evals": "eval",
    "loggers": "loggers",
    "observers": "observers",
    "tasks": "task",
    "engines": "engine",
    "trainers": "trainer",
}
"""Modules of broken plugins with their slot."""
RUNS = (
    (ANYWHERE,),
    ("buffers",),
    ("schedulers", "staleness", "filters", "producers"),
    ("evals", "loggers", "observers", "tasks"),
    ("engines", "trainers"),
)
"""Which of them share a run of pytest."""
PLUGINS = {(module, name): broken for module in MODULES for name, broken in marked(module).items()}
_OUTCOMES: dict[str, Outcomes] = {}


def outcomes_of(module: str, factory: pytest.TempPathFactory) -> Outcomes:
    """By plugin, out of one run for all modules of an entry of `RUNS`; made when the first of them is asked for."""
    if module not in _OUTCOMES:
        together = next(run for run in RUNS if module in run)
        plugins = {MODULES[one]: {title(one, name): broken for name, broken in marked(one).items()} for one in together}
        how: Any = {"examples": 5} if ANYWHERE in together else {"without": STARTS_PROCESSES}
        outcomes = run_suites(factory.mktemp(module), plugins, **how)
        _OUTCOMES.update(dict.fromkeys(together, outcomes))
    return _OUTCOMES[module]


def title(module: str, name: str) -> str:
    """A name that no plugin of another module has."""
    return f"{module.title()}{name}"


def rules(suite: type) -> set[str]:
    return {name for name in dir(suite) if name.startswith("test_")}


@pytest.mark.parametrize(("module", "name"), PLUGINS, ids=[f"{module}-{name}" for module, name in PLUGINS])
def test_a_broken_plugin_fails_its_rule_and_no_other(module: str, name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    outcomes = outcomes_of(module, tmp_path_factory)[title(module, name)]
    assert outcomes
    failed = {rule: outcome.said for rule, outcome in outcomes.items() if outcome.result == "failed"}
    broken = PLUGINS[module, name]
    assert set(failed) == ({broken.rule} if broken.rule else set()), failed
    for said in failed.values():
        assert all(word in said for word in ("promised:", "happened:", "to fix:")), said


@pytest.mark.parametrize("slot", SLOTS)
def test_every_rule_has_a_plugin_that_breaks_it(slot: str) -> None:
    own = rules(SUITES[slot]) - rules(BaseSuite)
    broken = {one.rule for (module, _), one in PLUGINS.items() if MODULES[module] == slot and module != ANYWHERE}
    assert own <= broken


def test_every_rule_of_all_slots_has_a_plugin_that_breaks_it() -> None:
    assert rules(BaseSuite) == {one.rule for one in marked(ANYWHERE).values() if one.rule}


@pytest.mark.parametrize("slot", SLOTS)
def test_every_rule_says_what_it_is(slot: str) -> None:
    for rule in rules(SUITES[slot]):
        assert (getattr(SUITES[slot], rule).__doc__ or "").strip().endswith("."), rule


def test_every_slot_has_a_suite() -> None:
    assert list(SUITES) == list(SLOTS)
    assert all(suite.slot == slot for slot, suite in SUITES.items())


def test_a_right_plugin_is_among_the_broken_ones_of_each_slot() -> None:
    right = [module for module in MODULES if marked(module).get("Right", Broken("", "none")).rule == ""]
    assert right == list(MODULES)

"""The hooks' page agrees with itself and with core: where hooks run, who may implement them, which are called at all."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import asyncrl
import pytest
from asyncrl.authoring import Plugin
from asyncrl.hook_checks import SPECS, hook_faults, missing_hooks
from asyncrl.hookspecs import (
    ACCEPTED_HOOK_APIS,
    ANY_PLUGIN_HOOKS,
    CALLED_IN,
    HOOK_API,
    OPTIONAL_HOOKS,
    PROCESSES,
    SLOT_HOOKS,
)
from asyncrl.plugins import SLOTS, discover, load
from first_party import first_party

CORE = Path(asyncrl.__file__).parent
CALLS = ("one", "each", "observe")


def calls() -> dict[str, set[str]]:
    """The hooks that core calls, with the modules that do: {hook: {module}}."""
    found: dict[str, set[str]] = {}
    for file in CORE.rglob("*.py"):
        if "testing" in file.parts:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CALLS and node.args:
                hook = node.args[0]
                if isinstance(hook, ast.Constant) and hook.value in SPECS:
                    found.setdefault(hook.value, set()).add(str(file.relative_to(CORE)))
    return found


def test_core_calls_every_hook_of_the_page() -> None:
    """Field report 33: a hook that nobody calls is as silent as a misspelled one. A buffer's state is for resuming."""
    assert set(calls()) == set(SPECS)


def test_every_hook_belongs_to_a_slot_or_to_everyone_and_runs_somewhere() -> None:
    of_slots = [hook for hooks in SLOT_HOOKS.values() for hook in hooks]
    observers = [hook for hook in SPECS if hook.startswith("on_")]
    assert sorted([*of_slots, *ANY_PLUGIN_HOOKS, *observers]) == sorted(SPECS)
    assert {hook for hooks in CALLED_IN.values() for hook in hooks} == set(SPECS)
    assert set(CALLED_IN) == set(PROCESSES)
    assert set(SPECS) >= OPTIONAL_HOOKS


@pytest.mark.parametrize("hook", SPECS)
def test_the_contract_of_a_hook_begins_with_where_it_runs(hook: str) -> None:
    first = re.split(r"[.:]", inspect.getdoc(SPECS[hook]) or "")[0].lower()
    assert [process for process in CALLED_IN if process in first] == [
        process for process, hooks in CALLED_IN.items() if hook in hooks
    ]


@pytest.mark.parametrize("hook", SPECS)
def test_a_hook_is_called_where_the_page_says(hook: str) -> None:
    actors = {"rollout_actor": "rollout", "engine_actor": "engine", "trainer_actor": "trainer", "eval_actor": "evaluator"}
    actors["front_process"] = "rollout"  # owned by it
    for module in calls()[hook]:
        name = Path(module).stem
        if module.startswith("runtime/"):
            assert hook in CALLED_IN[actors.get(name, "controller")], module
        elif module.startswith("rollout/"):
            assert hook in CALLED_IN["rollout"], module


@pytest.mark.parametrize("hook", SPECS)
def test_a_hook_has_typed_arguments_without_defaults_and_a_contract(hook: str) -> None:
    signature = inspect.signature(SPECS[hook])
    assert signature.return_annotation is not inspect.Signature.empty
    for parameter in signature.parameters.values():
        assert parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        assert parameter.default is parameter.empty
        assert parameter.annotation is not parameter.empty
    assert "None" not in re.findall(r"\| (\w+)", str(signature.return_annotation)), "no None for an answer"


@pytest.mark.parametrize("slot", SLOTS)
def test_every_first_party_plugin_keeps_to_the_page(slot: str) -> None:
    for found in first_party(slot).values():
        kind = load(found)
        assert [*hook_faults(slot, kind), *missing_hooks(slot, kind)] == []


def test_the_current_hook_api_is_the_newest_accepted_and_a_plugin_that_says_nothing_is_for_the_first() -> None:
    assert ACCEPTED_HOOK_APIS[-1] == HOOK_API == max(ACCEPTED_HOOK_APIS)
    assert Plugin.hook_api == 1
    assert discover().plugins


def test_a_plugin_of_a_former_api_that_is_still_accepted_gets_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    from asyncrl import hook_checks, hookimpl

    class Old(Plugin):
        @hookimpl
        def on_step(self, step: int) -> None: ...

    monkeypatch.setattr(hook_checks, "HOOK_API", 2)
    monkeypatch.setattr(hook_checks, "ACCEPTED_HOOK_APIS", (1, 2))
    assert list(hook_faults("observers", Old)) == []
    assert hook_checks.hook_doubts("observers", Old) == ["hook API 1 is going out of use; the current one is 2"]
    monkeypatch.setattr(hook_checks, "ACCEPTED_HOOK_APIS", (2,))
    (fault,) = hook_faults("observers", Old)
    assert f"Old at {__file__}:" in fault
    assert fault.endswith(": was written for hook API 1, and this asyncrl has 2: install a newer version of the plugin")


@pytest.mark.parametrize("slot", sorted(SLOTS))
def test_every_first_party_plugin_says_for_which_hook_api_it_was_written(slot: str) -> None:
    for found in first_party(slot).values():
        assert "hook_api" in vars(load(found).__mro__[1]), found

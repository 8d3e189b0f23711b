"""What is refused before anything starts."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import pytest
from asyncrl import OptionError, RunFacts
from asyncrl.hookspecs import SLOT_HOOKS
from asyncrl.host import Active, Host
from asyncrl_fsdp import FsdpOptions, FsdpTrainer

ASYNC = RunFacts(batch_size=4, group_size=4, max_concurrent_samples=16, steps=10)


def check(run: RunFacts, **options: Any) -> None:
    FsdpTrainer(FsdpOptions(**options), run).check_run(run)


def test_asynchronous_run_must_say_how_it_treats_the_behaviour_policy() -> None:
    with pytest.raises(OptionError) as caught:
        check(ASYNC)
    for words in ('trainer.old_policy = "engine"', 'trainer.correction = "tis"', '"none"'):
        assert words in str(caught.value)
    with pytest.raises(OptionError):
        check(ASYNC, old_policy="recomputed")


@pytest.mark.parametrize(
    "options",
    [
        {"old_policy": "engine"},
        {"correction": "none"},
        {"correction": "tis"},
        {"old_policy": "recomputed", "correction": "tis"},
        {"policy_loss": "policy-gradient", "correction": "none"},
    ],
)
def test_asynchronous_run_that_says_it_is_accepted(options: dict[str, Any]) -> None:
    check(ASYNC, **options)


def test_synchronous_run_needs_to_say_nothing() -> None:
    check(dataclasses.replace(ASYNC, synchronous=True))


@pytest.mark.parametrize(
    ("run", "options", "words"),
    [
        ({}, {"old_policy": "engine", "correction": "tis"}, "is 1 everywhere"),
        ({}, {"old_policy": "engine", "policy_loss": "policy-gradient"}, "has no ratio"),
        ({"temperature": 0.0}, {"old_policy": "engine"}, "temperature"),
        ({"top_p": 0.9}, {"old_policy": "engine"}, "top_p"),
        ({"top_k": 20}, {"correction": "tis"}, "top_k"),
        ({}, {"old_policy": "engine", "updates_per_step": 5}, "batch_size = 4"),
        ({}, {"old_policy": "engine", "dual_clip": 0.5}, "dual_clip"),
    ],
)
def test_contradictions_are_refused(run: dict[str, Any], options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        check(dataclasses.replace(ASYNC, **run), **options)


def test_top_p_goes_with_a_recomputed_old_policy() -> None:
    check(dataclasses.replace(ASYNC, top_p=0.9), old_policy="recomputed", correction="none")


def test_host_accepts_every_hook() -> None:
    host = Host([Active("trainer", "fsdp", "asyncrl-plugin-fsdp", "0.1.0", FsdpTrainer(FsdpOptions(), ASYNC))])
    for hook in SLOT_HOOKS["trainer"]:
        host.one(hook)
    with pytest.raises(OptionError):
        host.each("check_run", run=ASYNC)


def test_plugin_is_imported_without_torch() -> None:
    code = "import sys, asyncrl_fsdp; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

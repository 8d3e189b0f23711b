"""Field reports 10 to 19 in real runs: each ends by its deadline, got over or in one error, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from fake_distributions import install
from faults import CASES, Case
from faulty_plugins import SLOTS
from live import PATIENT

pytestmark = [pytest.mark.slow, pytest.mark.minutes, pytest.mark.timeout(1200)]

ALWAYS = ("troubled",)
"""Rows that are run for every change; the others are long."""

SMALL = ("--steps", "3", "--batch-size", "4", "--group-size", "4", "--max-concurrent-samples", "32")
SMALL += ("--eval-interval", "0", "--filters", "")


@pytest.fixture
def faulty(tmp_path: Path) -> dict[str, str]:
    """Environment of runs that find the faulty plugins."""
    install(tmp_path / "site", "faulty", SLOTS)
    paths = [str(tmp_path / "site"), str(Path(__file__).parents[1] / "support"), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(paths)}


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=() if case.name in ALWAYS else pytest.mark.long) for case in CASES],
)
def test_a_fault_is_got_over_or_ends_the_run_in_one_error_and_nothing_is_left(start: Any, faulty: Any, case: Case) -> None:
    run = start(*SMALL, *PATIENT, *case.flags, env=faulty, patience=900.0)
    if case.interrupted == "while starting":
        run.wait_until(lambda: run.processes("engine"), "the engine's server")
    elif case.interrupted:
        run.wait_for_step(1)
    if case.interrupted:
        run.process.send_signal(signal.SIGINT)
    assert run.wait() == case.exit_code, run.output
    errors = run.output.split("asyncrl: error:")[1:]
    assert len(errors) == (case.exit_code in (1, 3)), run.output
    assert case.exit_code == 3 or "Traceback" not in "".join(errors), "a traceback is for a plugin's author"
    for words in case.says:
        assert words in run.output
    assert run.summary["outcome"] == {0: "completed", 130: "interrupted"}.get(case.exit_code, "failed")
    counted = {name for line in run.lines("metrics.jsonl") for name, value in line["values"].items() if value}
    for metric in case.counts:
        assert any(name.startswith(metric) for name in counted), f"{metric} in {counted}"
    assert run.left_behind() == []

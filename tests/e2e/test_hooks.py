"""A real run with an observer that fails, goes around hooks in every process and holds a secret; every call is traced."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fake_distributions import install

pytestmark = pytest.mark.slow

SECRET = "hunter2-hunter2"
OBSERVER = """
import os
from pathlib import Path
from asyncrl import *
from pydantic import Field, SecretStr

class Meddles(Plugin):
    class Options(PluginOptions):
        token: SecretStr = Field(description="A key.")

    def leave(self, name):
        (Path(self.run.run_dir) / f"{name}-was-wrapped").touch()

    @hookimpl(wrapper=True)
    def train_batch(self):
        self.leave("train_batch")
        return (yield)

    @hookimpl(wrapper=True)
    def engine_server(self):
        self.leave("engine_server")
        return (yield)

    @hookimpl(wrapper=True)
    def buffer_put(self):
        self.leave("buffer_put")
        return (yield)

    @hookimpl
    def on_step(self, step):
        raise ValueError(f"{self.options.token.get_secret_value()} failed")

    @hookimpl
    def on_batch(self):
        raise SystemExit(f"{self.options.token.get_secret_value()} failed")
"""


def test_a_failing_observer_with_a_secret_goes_around_hooks_in_every_process_and_each_call_is_traced(
    start, tmp_path: Path
) -> None:
    """Field reports 33, 35 and 38."""
    folder = tmp_path / "installed"
    install(folder, "dist-meddles", {"asyncrl.observers": {"meddles": "meddles:Meddles"}}, modules={"meddles": OBSERVER})
    flags = [
        "--steps",
        "2",
        "--eval-interval",
        "0",
        "--trace-hooks",
        "--observers",
        "meddles",
        "--observers.meddles.token",
        SECRET,
    ]
    run = start(*flags, env={"PYTHONPATH": str(folder)})
    assert run.wait() == 0, run.output
    assert {path.name for path in run.directory.glob("*-was-wrapped")} == {
        f"{hook}-was-wrapped" for hook in ("train_batch", "engine_server", "buffer_put")
    }
    for hook, kind in (("on_step", "ValueError"), ("on_batch", "SystemExit")):
        warnings = re.findall(rf"failed in {hook} \(said once\) at \S+meddles.py:\d+: {kind}: \*{{10}} failed", run.output)
        assert len(warnings) == 1, run.output

    traces = {path.name.partition("-")[0]: path.read_text() for path in (run.directory / "hooks").iterdir()}
    assert set(traces) == {"controller", "rollout", "engine", "trainer"}
    calls = {"controller": "on_step(step=2)", "rollout": "on_batch()", "engine": "engine_server(", "trainer": "train_batch("}
    for process, call in calls.items():
        assert call in traces[process], process
    assert "raised ValueError: ********** failed" in traces["controller"]
    for path in run.directory.rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path
    assert SECRET not in run.output
    assert run.left_behind() == []

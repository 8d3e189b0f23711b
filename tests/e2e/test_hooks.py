"""A real run with an observer that fails, goes around hooks in every process and holds a secret; each call is traced, no key is told."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from fake_distributions import install
from listeners import family

pytestmark = pytest.mark.slow

DEMO = Path(__file__).parents[2] / "examples" / "demo.toml"

SECRET = "hunter2-hunter2"
IN_THE_FILE = "hunter3-hunter3"
IN_THE_ENVIRONMENT = {
    name: f"key-{number}-that-nobody-may-see-in-any-file"
    for number, name in enumerate(["WANDB_API_KEY", "HF_TOKEN", "ASYNCRL_ENGINE_API_KEY", "ASYNCRL_EVAL_API_KEY"])
}
OBSERVER = """
import os
from pathlib import Path
from asyncrl import *
from pydantic import Field, SecretStr

class Meddles(Plugin):
    class Options(PluginOptions):
        token: SecretStr = Field(description="A key.")
        other: SecretStr = Field(description="Another key.")

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
    def on_run_end(self):
        raise ValueError(self.options.other.get_secret_value())

    @hookimpl
    def on_batch(self):
        raise SystemExit(f"{self.options.token.get_secret_value()} failed")
"""


def test_a_failing_observer_with_a_secret_goes_around_hooks_in_every_process_and_each_call_is_traced(
    start, tmp_path: Path
) -> None:
    """Field reports 33, 35 and 38. Bound to every address, so that there is a key of the run too."""
    folder = tmp_path / "installed"
    install(folder, "dist-meddles", {"asyncrl.observers": {"meddles": "meddles:Meddles"}}, modules={"meddles": OBSERVER})
    file = tmp_path / "run.toml"
    file.write_text(f'{DEMO.read_text()}\n[observers.meddles]\nother = "{IN_THE_FILE}"\n')
    run = start(
        *("--steps", "2", "--eval-interval", "0", "--trace-hooks", "--observers.meddles.token", SECRET, "--bind", "0.0.0.0"),
        *("--loggers", "console,jsonl,wandb,tensorboard", "--loggers.wandb.mode", "offline"),
        file=file,
        env={"PYTHONPATH": str(folder), **IN_THE_ENVIRONMENT},
    )
    run.wait_for_step(1)
    key = key_of_the_run(run.process.pid)
    own = run.process.pid  # in whose command line the user wrote a secret
    commands = " ".join(command for pid, command in commands_of(run.process.pid) if pid != own)
    logs_of_ray = [path.read_bytes() for path in logs_of_ray_in(commands).rglob("*") if path.is_file()]
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

    assert len(key) > 30 and logs_of_ray and "asyncrl_torch.server" in commands
    assert (run.directory / "wandb").is_dir() and list(run.directory.glob("events.out.tfevents*"))
    written = {str(path): path.read_bytes() for path in run.directory.rglob("*") if path.is_file() and not path.is_symlink()}
    written |= {"output": run.output.encode(), "commands": commands.encode(), "logs of Ray": b"".join(logs_of_ray)}
    for secret in (SECRET, IN_THE_FILE, key, *IN_THE_ENVIRONMENT.values()):
        assert [where for where, content in written.items() if secret.encode() in content] == [], secret
    assert run.left_behind() == []


def commands_of(pid: int) -> Iterator[tuple[int, str]]:
    """Command lines of a run's processes: what every user of the machine may read."""
    for process in family(pid):
        with suppress(psutil.Error):
            yield process.pid, " ".join(process.cmdline())


def logs_of_ray_in(commands: str) -> Path:
    """The folder in which a cluster of the run's own logs, as its head was told."""
    found = re.search(r"gcs_server --log_dir=(\S+)", commands)
    assert found, commands
    return Path(found[1])


def key_of_the_run(pid: int) -> str:
    """What the engine's server was told by its environment, which only its own user may read."""
    for process in family(pid):
        with suppress(psutil.Error):
            if key := process.environ().get("ASYNCRL_ENGINE_KEY"):
                return key
    raise AssertionError("no server of the run has a key")


VANISHES = """
import shutil
from pathlib import Path
from asyncrl import *

class Vanishes(Plugin):
    @hookimpl
    def check_run(self):
        for found in Path(__file__).parent.glob("dist_vanishes-*"):
            shutil.rmtree(found)
"""


def test_a_plugin_that_another_process_does_not_find_is_the_error_whichever_actor_looks_first(start, tmp_path: Path) -> None:
    """Field report 35."""
    folder = tmp_path / "installed"
    install(folder, "dist-vanishes", {"asyncrl.observers": {"vanishes": "vanishes:Vanishes"}}, modules={"vanishes": VANISHES})
    run = start("--steps", "2", "--eval-interval", "0", "--observers", "vanishes", env={"PYTHONPATH": str(folder)})
    assert run.wait() == 3, run.output
    assert "wanted observers plugin 'vanishes' of dist-vanishes 1.0, found" in run.output
    assert run.left_behind() == []


COUNTS = """
from asyncrl import *

class Counts(Plugin):
    class Metrics(MetricSet):
        steps = Counter("Steps seen", unit="steps")

    @hookimpl
    def on_step(self):
        self.metrics.steps.add()
"""


def test_what_an_observer_counts_in_a_step_is_logged_at_that_step(start, tmp_path: Path) -> None:
    folder = tmp_path / "installed"
    install(folder, "dist-counts", {"asyncrl.observers": {"counts": "counts:Counts"}}, modules={"counts": COUNTS})
    run = start("--steps", "3", "--eval-interval", "0", "--observers", "counts", env={"PYTHONPATH": str(folder)})
    assert run.wait() == 0, run.output
    lines = [json.loads(line) for line in (run.directory / "metrics.jsonl").read_text().splitlines()]
    counted = [
        (line["step"], line["values"]["observers/counts/steps"]) for line in lines if "observers/counts/steps" in str(line)
    ]
    assert [step for step, _ in counted] == [1, 2, 3]

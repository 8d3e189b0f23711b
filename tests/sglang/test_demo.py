"""Examples run on a real SGLang server, by their launchers: the demo learns, and random completions have exactly their lengths."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from asyncrl import RunFacts
from asyncrl_random import RandomProducer, RandomProducerOptions
from live import lines
from publishing import WAYS
from servers import START_SECONDS, interpreter

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = 16


def launch(script: str, *flags: str, **options: Any) -> None:
    """Run a launcher of an example to its end."""
    python = Path(interpreter())
    patience = {"engine.python": python, "engine.start-timeout": START_SECONDS, "start-timeout": START_SECONDS}
    words = [word for name, value in (patience | options).items() for word in (f"--{name}", str(value))]
    env = {
        "OMP_NUM_THREADS": "1",
        "ENGINE": "sglang",
        "ASYNCRL_SGLANG_VENV": str(python.parent.parent),
        "ASYNCRL": f"{sys.executable} -m asyncrl",
    }
    command = ["bash", str(EXAMPLES / script), *flags, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1700, env={**os.environ, **env})
    assert done.returncode == 0, done.stdout + done.stderr


def metrics(run: Path) -> dict[str, list[float]]:
    """The values of each metric of a run."""
    values: dict[str, list[float]] = {}
    for line in lines(run / "metrics.jsonl"):
        for name, value in line["values"].items():
            values.setdefault(name, []).append(value)
    return values


def steps(run: Path) -> list[dict[str, float]]:
    """The metrics of each step of a run."""
    return [line["values"] for line in lines(run / "metrics.jsonl") if line["axis"] == "train_step"]


@pytest.mark.parametrize(
    ("method", "mode"),
    [("broadcast", "retract"), *(pytest.param(*way, marks=pytest.mark.long) for way in WAYS if way != ("broadcast", "retract"))],
)
def test_accuracy_rises(tmp_path, started, method, mode):
    """On one server of its own. Each token is under the version that it is said to be: at age 0, the server's log-probabilities are the
    trainer's, but for `in_place` from the first publication on, where the server goes on with the old cache. Field report 1."""
    for server in started:
        server.end()  # there are never more than two servers
    way = {"publish-method": method, "publish-mode": mode}
    launch("sglang_cpu.sh", **way, **{"name": "run", "runs-dir": tmp_path, "steps": STEPS, "eval-interval": STEPS})
    run = tmp_path / "run"
    summary = json.loads((run / "summary.json").read_text())
    assert summary["publications"] == STEPS
    assert summary["eval"]["held-out"]["last"] > summary["eval"]["held-out"]["first"] + 0.2
    assert set(summary["books"]["dropped"]) <= {"no_variance"}, "something was aborted or failed"
    values = metrics(run)
    assert not [name for name in values if name.startswith("rollout/sample_failures")], "a sample was aborted or failed"
    published, _, _ = (run / "logs" / "engine-0.txt").read_text(errors="replace").rpartition("POST /continue_generation ")
    assert published.count("POST /pause_generation ") >= STEPS and "/abort_request" not in published
    assert max(values["rollout/mixed_versions/mean"]) > 0, "no sample was in the middle of a publication"
    exact = steps(run)[: STEPS if mode == "retract" else 1]
    assert max(each.get("trainer/fsdp/largest_logprob_difference_by_age/0", 0.0) for each in exact) < 1e-3
    assert any("trainer/fsdp/logprob_difference_by_age/0" in each for each in exact)
    assert "trainer/fsdp/logprob_difference_by_age/1" in values, "nothing was asynchronous"
    for name in ("running", "waiting", "tokens_per_second"):
        assert f"engines/{name}/engine-0" in values and f"engines/{name}/all" in values
    assert 0 < max(values["engines/cache_hit_rate/all"]) <= 1


def test_random_completions_have_exactly_the_lengths_that_were_drawn(tmp_path, started):
    """By the launcher of the stress test: no completion ends at the model's own end."""
    for server in started:
        server.end()
    options = {"name": "run", "runs-dir": tmp_path, "num-engines": 1, "steps": 4, "save-interval": 0}
    launch("random_stress.sh", "--small", **options)
    values = metrics(tmp_path / "run")
    assert values["producer/random/early"][-1] == 0
    groups = [json.loads(line) for line in (tmp_path / "run" / "trace.jsonl").read_text().splitlines()]
    law = RandomProducer(RandomProducerOptions(mean=24), RunFacts(4, 4, 16, 4, max_new_tokens=96))._law
    for group in groups:
        drawn = [min(96, law.sample(group["prompt_id"], index)[0]) for index in range(4)]
        assert group["tokens"] == drawn

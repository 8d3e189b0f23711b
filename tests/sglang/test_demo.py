"""The demo trains on a real SGLang server, by the command that the documentation names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from servers import START_SECONDS, interpreter

DEMO = Path(__file__).parents[2] / "examples" / "demo.toml"
STEPS = 16


def test_accuracy_rises(tmp_path, started):
    """By broadcast, on one server of its own. Each token is under the version that it is said to be: at age 0, the server's
    log-probabilities are the trainer's. Field report 1."""
    for server in started:
        server.end()  # there are never more than two servers
    argv = [sys.executable, "-m", "asyncrl", "train", str(DEMO), "--name", "run", "--runs-dir", str(tmp_path)]
    options = {
        "engine": "sglang",
        "engine.python": interpreter(),
        "engine.start-timeout": START_SECONDS,
        "start-timeout": START_SECONDS,
        "steps": STEPS,
        "eval-interval": STEPS,
        "publish-method": "broadcast",
    }
    flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    done = subprocess.run(
        [*argv, *flags], capture_output=True, text=True, timeout=800, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr

    run = tmp_path / "run"
    summary = json.loads((run / "summary.json").read_text())
    assert summary["publications"] == STEPS
    assert summary["eval"]["held-out"]["last"] > summary["eval"]["held-out"]["first"] + 0.2
    assert set(summary["books"]["dropped"]) <= {"no_variance"}, "something was aborted or failed"
    values: dict[str, list[float]] = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        for name, value in json.loads(line)["values"].items():
            values.setdefault(name, []).append(value)
    assert max(values["trainer/fsdp/largest_logprob_difference_by_age/0"]) < 1e-3
    assert "trainer/fsdp/logprob_difference_by_age/1" in values, "nothing was asynchronous"
    for name in ("running", "waiting", "tokens_per_second"):
        assert f"engines/{name}/engine-0" in values and f"engines/{name}/all" in values
    assert 0 < max(values["engines/cache_hit_rate/all"]) <= 1

"""How much longer a run takes for its evaluations: on the rollout engines, and on engines of their own.

    .venv/bin/python benchmarks/eval_inflation.py

Three backends and no evaluation at all, the same run under the virtual clock: 8 engines of 32 slots, batches of 32 groups of 8, lognormal
lengths; a step takes 10 s in the trainer. Every 10th step is evaluated: 40 s, and the export of a snapshot takes 1 s. So `shared` should
cost about 40 % (evaluation time over interval), the others the export, 1 %, and hardly anything else. On a real machine the engines of
`fleet` and `sglang` need devices of their own for that; on the two cores of a laptop they would take the run's.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from asyncrl.flags import scan
from asyncrl.options import SWITCHES, resolve_line
from asyncrl.simulation.scenario import prepare

STEPS = 200
INTERVAL = 10
STEP_SECONDS = 10.0
EVAL_SECONDS = 40.0
EXPORT_SECONDS = 1.0
BACKENDS = ("shared", "fleet", "sglang")
RUN = f"""
steps = {STEPS}
batch_size = 32
group_size = 8
num_engines = 8
max_new_tokens = 2048
eval_interval = {INTERVAL}
[simulate]
train_seconds = {STEP_SECONDS}
publish_seconds = 0.2
eval_seconds = {EVAL_SECONDS}
export_seconds = {EXPORT_SECONDS}
lengths = "lognormal"
length_mean = 300
tokens_per_second = 50
"""


def seconds(file: Path, *flags: str) -> float:
    """Virtual seconds of the whole run."""
    return prepare(resolve_line(scan([str(file), *flags], SWITCHES))).run().seconds


def run() -> list[dict[str, Any]]:
    """Rows for `benchmarks/run.py`: the inflation by each backend, as a fraction of the run without evaluation."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.toml"
        file.write_text(RUN)
        alone = seconds(file, "--eval-interval", "0")
        inflation = {name: seconds(file, "--eval", name) / alone - 1 for name in BACKENDS}
    step = alone / STEPS
    goals = {name: EXPORT_SECONDS / (INTERVAL * step) + 0.03 for name in BACKENDS}
    goals["shared"] = 1.05 * EVAL_SECONDS / (INTERVAL * step)
    return [
        {
            "name": f"eval_inflation_{name}",
            "ratio": round(inflation[name], 4),
            "goal": round(goals[name], 4),
            "better": "lower",
            "unit": "of the run",
            "runs": 1,
            "against": f"the same run without evaluation, {'evaluation' if name == 'shared' else 'export'} time / interval and "
            f"{5 if name == 'shared' else 3} % {'of it ' if name == 'shared' else ''}on top",
        }
        for name in BACKENDS
    ]


if __name__ == "__main__":
    for row in run():
        print(f"{row['name']}: {row['ratio']:.2%} longer, goal at most {row['goal']:.2%}")

"""What the gate costs with 100,000 groups held: put and take through it with each buffer, and the metrics of a step.

    .venv/bin/python benchmarks/buffer_cost.py

Both must not depend on how much is held: ages and sizes are running sums. The groups have one sample each and come from 50 versions.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
from typing import Any

import numpy as np
from asyncrl import Group, Plugin, PluginOptions, Prompt, RunFacts, Sample, Status, full_mask, hookimpl
from asyncrl.host import Active, Host
from asyncrl.ledger import Ledger
from asyncrl.rollout.claims import Claims
from asyncrl.rollout.gate import Gate
from asyncrl.rollout.metrics import RolloutMetrics
from asyncrl_fifo import Fifo
from asyncrl_none import NoBound
from asyncrl_priority import Priority

HELD = 100_000
BATCH = 128
STEPS = 40
RUNS = 11
TOTAL = HELD + BATCH * STEPS * RUNS
VERSIONS = 50
SCORES = [random.Random(0).random() for _ in range(99_991)]
TOKENS, LOGPROBS = np.zeros(4, np.int32), np.zeros(4, np.float32)
PUT_TAKE_GOAL_US = 5.0
PRIORITY_GOAL_US = 15.0
METRICS_GOAL_MS = 1.0


def make_group(number: int) -> Group:
    version = number * VERSIONS // TOTAL
    sample = Sample(TOKENS, LOGPROBS, full_mask(4), ((version, 4),), Status.COMPLETED, float(number % 2))
    return Group(Prompt(number, TOKENS), (sample,))


class RandomScore(Plugin):
    """A worth that has nothing to do with the order of arrival, as is hardest for a buffer."""

    @hookimpl
    def score_group(self, group: Group) -> float:
        return SCORES[group.prompt_id % len(SCORES)]


async def measure(kind: type[Plugin] = Fifo, **options: Any) -> tuple[list[float], list[float]]:
    """Return microseconds of one put and one take together, and milliseconds of a step's metrics, for each run."""
    facts = RunFacts(batch_size=BATCH, group_size=1, max_concurrent_samples=HELD, steps=10**9)
    plugins: list[tuple[str, Plugin]] = [
        ("buffer", kind(kind.Options(capacity_factor=2 * HELD / BATCH, **options), facts)),
        ("staleness", NoBound(PluginOptions(), facts)),
        *([("observers", RandomScore(PluginOptions(), facts))] if options.get("order") == "score" else []),
    ]
    host = Host([Active(slot, slot, slot, "0.1.0", plugin) for slot, plugin in plugins])
    ledger, metrics = Ledger(), RolloutMetrics("rollout")
    gate = Gate(host, ledger, Claims(host, facts), facts, metrics, on_unused="drop", wait_warning=30.0)
    for _ in range(HELD):
        gate.put(make_group(ledger.issue()))
    gc.collect()
    put_take: list[float] = []
    step_metrics: list[float] = []
    for _ in range(RUNS):
        moving = measuring = 0.0
        for _ in range(STEPS):
            arriving = [make_group(ledger.issue()) for _ in range(BATCH)]
            began = time.process_time()
            for group in arriving:
                gate.put(group)
            await gate.take_groups(VERSIONS, "a batch")
            moved = time.process_time()
            gate.measure(VERSIONS)
            metrics.drain()
            measuring += time.process_time() - moved
            moving += moved - began
            gate.batch = []
        put_take.append(moving / (STEPS * BATCH) * 1e6)
        step_metrics.append(measuring / STEPS * 1e3)
    return put_take, step_metrics


def run() -> list[dict[str, Any]]:
    """Rows for `benchmarks/run.py`."""
    put_take, step_metrics = asyncio.run(measure())
    freshest, _ = asyncio.run(measure(Priority, order="freshest"))
    by_score, _ = asyncio.run(measure(Priority, order="score"))
    rows = [
        ("put_take_100k", put_take, PUT_TAKE_GOAL_US, "µs"),
        ("put_take_100k_freshest", freshest, PRIORITY_GOAL_US, "µs"),
        ("put_take_100k_score", by_score, PRIORITY_GOAL_US, "µs"),
        ("step_metrics_100k", step_metrics, METRICS_GOAL_MS, "ms"),
    ]
    return [
        {
            "name": name,
            "ratio": round(min(values), 3),  # a neighbour on the core only ever adds: by two thirds, to a plain loop just as well
            "goal": goal,
            "unit": unit,
            "runs": RUNS,
            "against": "a fixed limit of CPU time with 100,000 groups held, in the fastest run",
            "better": "lower",
        }
        for name, values, goal, unit in rows
    ]


if __name__ == "__main__":
    for row in run():
        print(f"{row['name']:28} {row['ratio']:7.3f} {row['unit']} (goal {row['goal']})")

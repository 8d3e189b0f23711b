"""What a simulated group costs, from one engine to 1,024: CPU time a group must not grow with the number of engines.

    .venv/bin/python benchmarks/simulation_scale.py            ratios, as `benchmarks/run.py` records them
    .venv/bin/python benchmarks/simulation_scale.py --full     1,024 engines of 256 slots, batches of 2,048 groups of 8, 100 steps

Lognormal lengths of mean 512 tokens (sigma 1, clipped at 4 times the mean), 50 tokens/s a slot; training takes as long as generating a
batch does; every step publishes. Plugins are the defaults: `sample`, `fifo`, no staleness bound, `single-turn`.
"""

from __future__ import annotations

import argparse
import gc
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from asyncrl.authoring import PluginOptions, RunFacts
from asyncrl.host import Active
from asyncrl.simulation.clock import run_virtual
from asyncrl.simulation.engine import ScriptedEngine
from asyncrl.simulation.lengths import LognormalLengths
from asyncrl.simulation.measured import Measured
from asyncrl.simulation.run import SimulatedRun
from asyncrl.simulation.script import LengthScript
from asyncrl.simulation.task import ScriptedTask, simulation_host
from asyncrl_fifo import Fifo
from asyncrl_none import NoBound
from asyncrl_sample import SampleScheduler
from asyncrl_single_turn import SingleTurn

GROUP = 8
MEAN_TOKENS = 512
TOKENS_A_SECOND = 50.0
RUNS = 3
# (engines, slots in each, groups a batch, steps): as many samples in flight in all, then as many in each engine.
CASES = [
    ("simulation_same_total", ((1, 8192, 1024, 6), (1024, 8, 1024, 6)), 1.25, "1 engine of 8,192 slots, for 1,024 engines of 8"),
    ("simulation_same_load", ((1, 32, 8, 400), (1024, 32, 4096, 4)), 1.5, "1 engine of 32 slots, for 1,024 engines of 32"),
]


@dataclass(frozen=True)
class Cost:
    """What a simulation cost: CPU seconds in all, and CPU microseconds a group once the slots were full; with what it measured."""

    seconds: float
    us_a_group: float
    measured: Measured


def simulate(engines: int, slots: int, batch_size: int, steps: int, on_step: Callable[[int], None] = lambda step: None) -> Cost:
    """Simulate `steps` batches (2 or more) on `engines` of `slots`, all of them in use."""
    total = engines * slots
    facts = RunFacts(batch_size=batch_size, group_size=GROUP, max_concurrent_samples=total, steps=steps)
    plugins = {
        "producer": SingleTurn(PluginOptions(), facts),
        "scheduler": SampleScheduler(PluginOptions(), facts),
        "buffer": Fifo(Fifo.Options(), facts),
        "staleness": NoBound(PluginOptions(), facts),
    }
    host = simulation_host([Active(slot, slot, "", "", plugin) for slot, plugin in plugins.items()], ScriptedTask(facts))
    lengths = LognormalLengths(MEAN_TOKENS, sigma=1.0, clip=4.0)
    script = LengthScript(lengths, per_token=1 / TOKENS_A_SECOND)
    train = lengths.mean / TOKENS_A_SECOND * batch_size * GROUP / total

    began = time.process_time()
    scripted = [ScriptedEngine(f"engine-{index}", slots=slots, script=script) for index in range(engines)]
    marks: list[tuple[float, int]] = []

    def begin(step: int) -> float:
        marks.append((time.process_time(), sum(engine.requests for engine in scripted)))
        on_step(step)
        return train

    async def main() -> Measured:
        run = SimulatedRun(
            host,
            facts,
            scripted,
            train_seconds=begin,
            wait_warning=1e9,  # the first batch takes a while, in virtual seconds
            keep_batches=False,
        )
        await run.run()
        return run.measured(warmup_steps=steps // 10)

    gc.collect()
    measured = run_virtual(main())
    (first, before), (last, after) = marks[0], marks[-1]  # from the first batch on, a sample starts whenever one ends
    return Cost(time.process_time() - began, (last - first) / (after - before) * GROUP * 1e6, measured)


def peak_mib() -> float:
    """Greatest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run() -> list[dict[str, Any]]:
    """Rows for `benchmarks/run.py`."""
    rows = []
    for name, (one, many), goal, against in CASES:
        alone, together = [], []
        for _ in range(RUNS):  # in turn, so that a busy machine is busy for both
            alone.append(simulate(*one).us_a_group)
            together.append(simulate(*many).us_a_group)
        rows.append(
            {
                "name": name,
                "ratio": round(min(together) / min(alone), 3),
                "goal": goal,
                "unit": "x",
                "runs": RUNS,
                "against": f"{against}; the fastest run of each",
                "better": "lower",
            }
        )
    return rows


def full(steps: int, batch_size: int) -> None:
    """Print what the largest simulation costs."""

    def on_step(step: int) -> None:
        print(f"step {step} of {steps}, {time.process_time():.0f} s CPU, {peak_mib():.0f} MiB", flush=True)

    began = time.monotonic()
    cost = simulate(1024, 256, batch_size, steps, on_step)
    took, measured = time.monotonic() - began, cost.measured
    print(
        f"{took:.0f} s ({cost.seconds:.0f} s CPU), {cost.us_a_group:.0f} us CPU a group, {peak_mib():.0f} MiB at most; "
        f"{measured.groups['issued']:,} groups issued, step {measured.over_limit:.3f} of its limit, slots {measured.slots_busy:.1%} busy"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="CPU time of a simulated group.")
    parser.add_argument("--full", action="store_true", help="1,024 engines of 256 slots instead")
    parser.add_argument("--steps", type=int, default=100, help="steps of --full")
    parser.add_argument("--batch-size", type=int, default=2048, help="groups a batch of --full")
    options = parser.parse_args()
    if options.full:
        full(options.steps, options.batch_size)
    else:
        for row in run():
            print(f"{row['name']:28} {row['ratio']:7.2f} {row['unit']} (goal {row['goal']})")

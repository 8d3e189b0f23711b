"""CPU time a sample costs core: task, producer loop, gate, buffer and batch, with engines that answer at once or one by one.

    .venv/bin/python benchmarks/sample_overhead.py

Group size 8, 512 token ids and log-probabilities a sample, as numpy arrays. Making the arrays is the engine's work and not counted.
The staggered rows hold 256 and 1,024 samples in flight and let one finish at a time: a wake-up must not scan what is in flight.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from asyncrl import Completion, EvalSet, Plugin, PluginOptions, Prompt, RunFacts, Sample, Score, hookimpl
from asyncrl.host import Active, Host
from asyncrl.rollout.engine import Engine, GenerateRequest
from asyncrl.rollout.service import RolloutService
from asyncrl_fifo import Fifo
from asyncrl_none import NoBound
from asyncrl_sample import SampleScheduler
from asyncrl_single_turn import SingleTurn

GROUP = 8
TOKENS = 512
GOAL_US = 25.0
RUNS = 5
SAMPLES_A_RUN = 16_384


class BenchTask(Plugin):
    """A prompt of 32 tokens; the reward is the parity of the first token."""

    def __init__(self, options: PluginOptions, run: RunFacts) -> None:
        super().__init__(options, run)
        self._prompt = np.arange(32, dtype=np.int32)

    @hookimpl
    def train_prompt(self, position: int) -> Prompt:
        return Prompt(position, self._prompt)

    @hookimpl
    async def score_sample(self, prompt: Prompt, sample: Sample) -> Score:
        return Score(float(sample.token_ids[0] & 1))

    @hookimpl
    def eval_sets(self) -> tuple[EvalSet, ...]:
        return ()


def completions(count: int) -> list[Completion]:
    """Ready answers, each with arrays of its own."""
    rng = np.random.default_rng(0)
    return [
        Completion(
            rng.integers(0, 50_000, TOKENS).astype(np.int32),
            rng.standard_normal(TOKENS).astype(np.float32),
            ((0, TOKENS),),
            "stop",
            0,
        )
        for _ in range(count)
    ]


class AtOnce:
    """Answers every request at once."""

    engines: Sequence[Engine] = ()

    def __init__(self, answers: list[Completion]) -> None:
        self._answers = answers
        self._next = 0

    async def generate(self, request: GenerateRequest) -> Completion:
        self._next = (self._next + 1) % len(self._answers)
        return self._answers[self._next]


class OneByOne:
    """Answers the oldest request, and then the next one when the event loop comes round again."""

    engines: Sequence[Engine] = ()

    def __init__(self, answers: list[Completion]) -> None:
        self._answers = answers
        self._next = 0
        self._open: deque[asyncio.Future[None]] = deque()
        self._answering = False

    async def generate(self, request: GenerateRequest) -> Completion:
        if self._answering:
            turn = asyncio.get_running_loop().create_future()
            self._open.append(turn)
            await turn
        self._answering = bool(self._open)
        if self._open:
            self._open.popleft().set_result(None)
        self._next = (self._next + 1) % len(self._answers)
        return self._answers[self._next]


def make_host(facts: RunFacts) -> Host:
    plugins: list[tuple[str, str, Plugin]] = [
        ("task", "bench", BenchTask(PluginOptions(), facts)),
        ("producer", "single-turn", SingleTurn(PluginOptions(), facts)),
        ("scheduler", "sample", SampleScheduler(PluginOptions(), facts)),
        ("buffer", "fifo", Fifo(Fifo.Options(capacity_factor=2.0), facts)),
        ("staleness", "none", NoBound(PluginOptions(), facts)),
    ]
    return Host([Active(slot, name, f"asyncrl-plugin-{name}", "0.1.0", plugin) for slot, name, plugin in plugins])


async def measure(batch_size: int, slots: int, pool: AtOnce | OneByOne) -> float:
    """Return CPU microseconds a sample that was trained."""
    steps = max(4, SAMPLES_A_RUN // (batch_size * GROUP))
    facts = RunFacts(batch_size=batch_size, group_size=GROUP, max_concurrent_samples=slots, steps=10**9)
    service = RolloutService(make_host(facts), pool, facts)
    await service.start()
    gc.collect()
    produced = service.ledger.generated_tokens
    began = time.process_time()
    for step in range(1, steps + 1):
        await service.take_batch(0, step)
        service.trained(step)
        service.drain_metrics()
    spent = time.process_time() - began
    samples = (service.ledger.generated_tokens - produced) // TOKENS
    await service.stop()
    return spent / samples * 1e6


def run() -> list[dict[str, Any]]:
    """Rows for `benchmarks/run.py`."""
    answers = completions(2048)
    cases = [(f"sample_cpu_batch_{size}", size, size * GROUP, AtOnce) for size in (32, 128)]
    cases += [(f"sample_cpu_staggered_{slots}", 32, slots, OneByOne) for slots in (256, 1024)]
    times: dict[str, list[float]] = {name: [] for name, *_ in cases}
    for _ in range(RUNS):
        for name, batch_size, slots, pool in cases:
            times[name].append(asyncio.run(measure(batch_size, slots, pool(answers))))
    return [
        {
            "name": name,
            "ratio": round(statistics.median(times[name]), 2),
            "goal": GOAL_US,
            "unit": "µs",
            "runs": RUNS,
            "against": "a fixed limit of CPU time a sample",
            "better": "lower",
        }
        for name, *_ in cases
    ]


if __name__ == "__main__":
    for row in run():
        print(f"{row['name']:28} {row['ratio']:7.2f} {row['unit']} (goal {row['goal']})")

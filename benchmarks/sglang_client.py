"""Core's client and pool against asyncio with bare HTTP posts: wall time of the same requests to one real SGLang server, 64 at a time.

    .venv/bin/python benchmarks/sglang_client.py      needs the environment of `make test-sglang`

Both sides send the same bodies over one aiohttp session each and keep 64 in flight. The bare side reads the JSON and nothing else; the
client's side checks ids, routes, reads tokens, log-probabilities and version spans into arrays. They take turns; the median ratio counts.
The CPU time of each side is printed with its wall time: on a busy machine it alone says what the client costs.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import aiohttp
import numpy as np
from asyncrl.rollout.client import EngineClient
from asyncrl.rollout.connection import make_session
from asyncrl.rollout.engine import GenerateRequest
from asyncrl.rollout.pool import EnginePool
from asyncrl.samples import SamplingParams
from asyncrl.testing.models import default_model
from sglang_server import served

CONCURRENT = 64
REQUESTS = 128
NEW_TOKENS = 32
ROUNDS = 15
VOCABULARY = 64


def run() -> list[dict[str, Any]]:
    from models import without_end

    with tempfile.TemporaryDirectory(prefix="asyncrl-bench-model-") as folder:
        model = without_end(default_model(), Path(folder) / "model")  # every request gets all its tokens
        with served(model) as server:
            ratios = asyncio.run(measure(server.spec))
    return [
        {
            "name": "sglang_client",
            "ratio": statistics.median(ratios),
            "goal": 1.10,
            "better": "lower",
            "unit": "wall time / wall time",
            "runs": len(ratios),
            "against": "asyncio with bare HTTP posts, 64 concurrent",
        }
    ]


async def measure(spec: Any) -> list[float]:
    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, 60, int(length)).astype(np.int32) for length in rng.integers(4, 40, REQUESTS)]
    async with make_session() as session, aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as bare:
        client = EngineClient.of_spec("engine-0", spec, session, vocab_size=VOCABULARY, request_timeout=600)
        pool = EnginePool([client])
        params = SamplingParams(NEW_TOKENS, temperature=1.0)
        sampling = {"max_new_tokens": NEW_TOKENS, "temperature": 1.0, "top_p": 1.0, "top_k": -1}

        async def ours(index: int) -> int:
            return len((await pool.generate(GenerateRequest(prompts[index], params, index))).token_ids)

        async def theirs(index: int) -> int:
            body = {"input_ids": prompts[index].tolist(), "sampling_params": sampling, "return_logprob": True}
            async with bare.post(f"{spec.url}/generate", json=body) as response:
                return len((await response.json())["output_ids"])

        ratios = []
        for side in (ours, theirs):  # prompts are cached, connections open
            await _timed(side)
        for turn in range(ROUNDS):
            sides = (ours, theirs) if turn % 2 else (theirs, ours)
            spent = {side: await _timed(side) for side in sides}
            ratios.append(spent[ours][0] / spent[theirs][0])
            told = (
                f"{name} {took:.2f} s (CPU {cpu:.3f} s)"
                for name, (took, cpu) in (("client", spent[ours]), ("bare", spent[theirs]))
            )
            print(", ".join(told), file=sys.stderr)
        await pool.close()
        await client.close()
    return ratios


async def _timed(ask: Any) -> tuple[float, float]:
    """Seconds for all requests, so many at a time, and seconds of CPU that this process spent on them."""
    slots = asyncio.Semaphore(CONCURRENT)

    async def one(index: int) -> int:
        async with slots:
            return int(await ask(index))

    began, cpu = time.perf_counter(), time.process_time()
    counts = await asyncio.gather(*(one(index) for index in range(REQUESTS)))
    spent = time.perf_counter() - began, time.process_time() - cpu
    assert counts == [NEW_TOKENS] * REQUESTS
    return spent


if __name__ == "__main__":
    print(run())

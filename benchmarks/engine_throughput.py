"""The `torch` engine over HTTP against Hugging Face `generate`: tokens a second at 1, 8, 32 and 64 concurrent prompts.

    .venv/bin/python benchmarks/engine_throughput.py

Both sides have one thread and the same model, prompts, lengths and sampling (temperature 1). A round is the same list of prompts for
both: the engine keeps N of them in flight, so that a finished one makes room for the next; `generate` takes them in batches of N, each of
which runs until its longest is done. Only tokens that were asked for count. The engine also returns log-probabilities, `generate` does not.
The two take turns, round by round, and a ratio is of one round each; the median over the rounds counts.

*fixed*: 64 new tokens each. *tail*: lognormal lengths with sigma 1 and median 24, at most 220.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import aiohttp
import orjson
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

CONCURRENT = (1, 8, 32, 64)
ROUNDS = 5
GOALS = {"fixed": 1.0, "tail": 2.0}
VOCABULARY = 64
FIXED_LENGTH = 64
TAIL_MEDIAN, TAIL_SIGMA, TAIL_LONGEST = 24, 1.0, 220
START_SECONDS = 120


@dataclass(frozen=True)
class Job:
    """One prompt and how many tokens are wanted of it."""

    prompt: list[int]
    new_tokens: int


def run() -> list[dict[str, Any]]:
    """Return a row for each number of concurrent prompts and each kind of lengths."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="asyncrl-bench-model-") as folder:
        make_model(Path(folder))
        model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        model.generation_config.eos_token_id = None  # every length is given
        server, url = start_server(Path(folder))
        try:
            return asyncio.run(measure(model, url))
        finally:
            server.terminate()
            server.wait()


async def measure(model: Qwen3ForCausalLM, url: str) -> list[dict[str, Any]]:
    """Return the rows."""
    rows = []
    async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=0)) as session:
        await until_ready(session)
        for kind in GOALS:
            for count in CONCURRENT:
                rows.append(await compare(model, session, kind, count))
    return rows


async def compare(model: Qwen3ForCausalLM, session: aiohttp.ClientSession, kind: str, count: int) -> dict[str, Any]:
    """Measure both sides in turns; return the row."""
    warm = make_jobs("fixed", count, count, seed=999)
    warm = [Job(job.prompt, 8) for job in warm]
    await engine_seconds(session, warm, count)
    generate_seconds(model, warm, count)
    ratios, ours, theirs = [], [], []
    for turn in range(ROUNDS):
        jobs = make_jobs(kind, max(4 * count, 8), count, seed=turn)
        tokens = sum(job.new_tokens for job in jobs)
        if turn % 2 == 0:
            engine, generate = await engine_seconds(session, jobs, count), generate_seconds(model, jobs, count)
        else:
            generate, engine = generate_seconds(model, jobs, count), await engine_seconds(session, jobs, count)
        ratios.append(generate / engine)
        ours.append(tokens / engine)
        theirs.append(tokens / generate)
    row = {
        "name": f"engine/{kind}/{count}",
        "ratio": round(statistics.median(ratios), 3),
        "goal": GOALS[kind] if count >= 32 else 1.0,
        "unit": "times the tokens/s",
        "runs": ROUNDS,
        "against": "Hugging Face generate",
    }
    print(
        f"{row['name']:<18} engine {statistics.median(ours):8.0f} tokens/s   generate {statistics.median(theirs):8.0f} tokens/s"
        f"   ratio {row['ratio']:.2f}  ({', '.join(f'{ratio:.2f}' for ratio in sorted(ratios))})",
        flush=True,
    )
    return row


def make_jobs(kind: str, total: int, count: int, seed: int) -> list[Job]:
    """Return prompts of 5 to 12 tokens, all different, with the lengths of the kind."""
    draw = random.Random(seed * 1000 + count)
    jobs = []
    for _ in range(total):
        prompt = [1, *(draw.randrange(3, VOCABULARY) for _ in range(draw.randint(4, 11)))]
        tail = min(TAIL_LONGEST, max(1, round(draw.lognormvariate(0, TAIL_SIGMA) * TAIL_MEDIAN)))
        jobs.append(Job(prompt, FIXED_LENGTH if kind == "fixed" else tail))
    return jobs


async def engine_seconds(session: aiohttp.ClientSession, jobs: list[Job], count: int) -> float:
    """Send all jobs, `count` at a time."""
    todo = iter(jobs)

    async def client() -> None:
        for job in todo:
            sampling = {"temperature": 1.0, "max_new_tokens": job.new_tokens, "ignore_eos": True}
            body = orjson.dumps({"input_ids": job.prompt, "sampling_params": sampling, "return_logprob": True})
            async with session.post("/generate", data=body, headers={"Content-Type": "application/json"}) as response:
                reply = orjson.loads(await response.read())
            assert len(reply["output_ids"]) == job.new_tokens, reply

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(count)))
    return time.perf_counter() - began


def generate_seconds(model: Qwen3ForCausalLM, jobs: list[Job], count: int) -> float:
    """Generate all jobs in batches of `count`, prompts padded on the left."""
    began = time.perf_counter()
    for start in range(0, len(jobs), count):
        batch = jobs[start : start + count]
        width = max(len(job.prompt) for job in batch)
        ids = torch.tensor([[0] * (width - len(job.prompt)) + job.prompt for job in batch])
        mask = torch.tensor([[0] * (width - len(job.prompt)) + [1] * len(job.prompt) for job in batch])
        longest = max(job.new_tokens for job in batch)
        output = model.generate(
            ids, attention_mask=mask, max_new_tokens=longest, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, pad_token_id=0
        )
        assert output.shape == (len(batch), width + longest), output.shape
    return time.perf_counter() - began


def make_model(folder: Path) -> None:
    """Write a randomly initialised model of the demo's size."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        tie_word_embeddings=True,
        max_position_embeddings=256,
        initializer_range=0.05,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)


def start_server(folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Start the engine on a free port, with a row for each concurrent prompt."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = [sys.executable, "-m", "asyncrl_torch.server", "--model", str(folder), "--port", str(port)]
    argv += ["--max-running", str(max(CONCURRENT)), "--parent-pid", str(os.getpid())]
    return subprocess.Popen(argv, stdout=subprocess.DEVNULL), f"http://127.0.0.1:{port}"


async def until_ready(session: aiohttp.ClientSession) -> None:
    """Wait until the server answers. Raises `TimeoutError` after two minutes."""
    async with asyncio.timeout(START_SECONDS):
        while True:
            try:
                async with session.get("/health") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.2)


if __name__ == "__main__":
    run()

"""Publication of weights by disk and by broadcast against a plain memory copy of the same bytes; and what the client adds to a post.

    .venv/bin/python benchmarks/publication.py

The real trainer and one real engine process. A publication is everything from the trainer's weights to an engine that serves
them and has confirmed their digest. Memory copy and both publications take turns, round by round; a ratio is of one round, and the
median counts. The client is measured in CPU time of this process a request, 64 at a time against a server in another process, next
to bare aiohttp posts of the same bodies whose answers are only parsed into the same arrays: no checks, no deadline, no spans.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import orjson
import torch
from aiohttp import ClientSession, TCPConnector, web
from asyncrl import RunFacts, TrainerPlace, WeightGroup, WeightManifest
from asyncrl.rollout.client import EngineClient
from asyncrl.rollout.connection import make_session
from asyncrl.rollout.engine import GenerateRequest
from asyncrl.rollout.weights import EngineWeights
from asyncrl.samples import SamplingParams
from asyncrl.training.interfaces import Exported
from asyncrl.training.publication import Publisher, PublishPlan, free_port
from asyncrl_fsdp import FsdpOptions, FsdpTrainer
from transformers import Qwen3Config, Qwen3ForCausalLM

ROUNDS = 7
GOAL = 0.1
START_SECONDS = 120
CONCURRENT, REQUESTS, NEW_TOKENS, PROMPT_TOKENS = 64, 2048, 128, 32
CLIENT_GOAL = 1.1


def run() -> list[dict[str, Any]]:
    """Return the rows of both measurements."""
    return [*asyncio.run(publications()), asyncio.run(client_overhead())]


# Publication ----------------------------------------------------------------------------------------------------------


class Trainer:
    """The trainer plugin on one rank, its blocking calls in threads."""

    def __init__(self, model: Path) -> None:
        facts = RunFacts(batch_size=1, group_size=1, max_concurrent_samples=1, steps=1, synchronous=True)
        self.plugin = FsdpTrainer(FsdpOptions(), facts)
        place = TrainerPlace(0, 1, 0, "127.0.0.1", free_port("127.0.0.1"), "cpu", model, "float32", 1, 0, 60.0)
        self.facts = self.plugin.trainer_open(place)

    async def export(self, directory: Path) -> Exported:
        return await asyncio.to_thread(self.plugin.export_model, directory)

    async def manifest(self) -> WeightManifest:
        return await asyncio.to_thread(self.plugin.weight_manifest)

    async def join(self, group: WeightGroup) -> None:
        await asyncio.to_thread(self.plugin.join_weight_group, group)

    async def broadcast(self, index: int) -> int:
        return await asyncio.to_thread(self.plugin.broadcast_bucket, index)

    async def leave(self) -> None:
        await asyncio.to_thread(self.plugin.leave_weight_group)


async def publications() -> list[dict[str, Any]]:
    """Return a row for each way to publish."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="asyncrl-bench-", dir="/dev/shm") as folder:
        model = make_model(Path(folder) / "model")
        server, url = start_engine(model)
        trainer = Trainer(model)
        try:
            async with make_session() as session:
                client = EngineClient("engine-0", url, session, vocab_size=1, request_timeout=60, takes_packed=True)
                await until_ready(client)
                weights = EngineWeights([client], timeout=120)
                ways = {
                    way: Publisher(PublishPlan(way, "retract", 120, "bench", Path(folder)), trainer, weights)  # type: ignore[arg-type]
                    for way in ("disk", "broadcast")
                }
                rows = await take_turns(ways, trainer.facts.model_bytes)
                for publisher in ways.values():
                    await publisher.close()
                return rows
        finally:
            server.kill()
            server.wait()
            trainer.plugin.trainer_close()


async def take_turns(ways: dict[str, Publisher], num_bytes: int) -> list[dict[str, Any]]:
    source = np.random.default_rng(0).integers(0, 255, num_bytes, dtype=np.uint8)
    target = np.empty_like(source)
    np.copyto(target, source)  # touch the pages
    copies: list[float] = []
    speeds: dict[str, list[float]] = {way: [] for way in ways}
    version = 0
    for turn in range(ROUNDS + 1):
        copy = await timed(lambda: asyncio.to_thread(np.copyto, target, source))
        for way in ways if turn % 2 else reversed(ways):
            ways[way].version = version  # two publishers take turns on one engine
            seconds = await timed(lambda way=way: ways[way].publish(0.0))
            version += 1
            if turn:  # the first round warms up
                speeds[way].append(num_bytes / 1e9 / seconds)
        if turn:
            copies.append(num_bytes / 1e9 / copy)
    print(f"{num_bytes / 1e6:.0f} MB of weights; memory copy {statistics.median(copies):.2f} GB/s", flush=True)
    rows = []
    for way, reached in speeds.items():
        print(f"publication by {way}: {statistics.median(reached):.3f} GB/s", flush=True)
        ratios = [speed / copy for speed, copy in zip(reached, copies, strict=True)]
        against = f"a memory copy of the same {num_bytes / 1e6:.0f} MB"
        rows.append(_row(f"publication/{way}", ratios, GOAL, "of the GB/s", against))
    return rows


async def timed(work: Callable[[], Awaitable[Any]]) -> float:
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


def make_model(folder: Path) -> Path:
    """Write a random model of some 50 million parameters, 200 MB in float32."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=8192,
        hidden_size=640,
        intermediate_size=2048,
        num_hidden_layers=8,
        num_attention_heads=10,
        num_key_value_heads=5,
        head_dim=64,
        tie_word_embeddings=True,
        max_position_embeddings=256,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


def start_engine(model: Path) -> tuple[subprocess.Popen[bytes], str]:
    port = free_port("127.0.0.1")
    argv = [
        sys.executable,
        "-m",
        "asyncrl_torch.server",
        "--model",
        str(model),
        "--port",
        str(port),
        "--parent-pid",
        str(os.getpid()),
    ]
    return subprocess.Popen(argv, stdout=subprocess.DEVNULL), f"http://127.0.0.1:{port}"


async def until_ready(client: EngineClient) -> None:
    async with asyncio.timeout(START_SECONDS):
        while not await client.reachable():  # noqa: ASYNC110 - nothing tells when another process listens
            await asyncio.sleep(0.2)


# The client -----------------------------------------------------------------------------------------------------------


def answer_at_once(sock: socket.socket) -> None:
    """A server process that has every answer ready."""
    ids = list(range(NEW_TOKENS))
    meta = {
        "id": "0" * 16,
        "finish_reason": {"type": "length", "length": NEW_TOKENS},
        "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": NEW_TOKENS,
        "weight_version": "0",
        "weight_versions": [{"version": "0", "start": 0, "end": NEW_TOKENS}],
        "output_token_logprobs": [[-1.0 - 1 / (3 + token), token, None] for token in ids],
    }
    body = orjson.dumps({"text": "", "output_ids": ids, "meta_info": meta})

    async def generate(http: web.Request) -> web.Response:
        await http.read()
        return web.Response(body=body, content_type="application/json")

    app = web.Application()
    app.router.add_post("/generate", generate)
    web.run_app(app, sock=sock, print=None, access_log=None)


async def client_overhead() -> dict[str, Any]:
    """Return the row of the client against bare posts."""
    sock = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    server = multiprocessing.get_context("fork").Process(target=answer_at_once, args=(sock,), daemon=True)
    server.start()
    prompt = np.arange(PROMPT_TOKENS, dtype=np.int32)
    request = GenerateRequest(prompt, SamplingParams(NEW_TOKENS), affinity=0)
    ratios, ours, bare = [], [], []
    try:
        async with make_session() as session, ClientSession(connector=TCPConnector(limit=0)) as plain:
            client = EngineClient("engine-0", url, session, vocab_size=NEW_TOKENS, request_timeout=60)

            async def post() -> None:
                sampling = {"max_new_tokens": NEW_TOKENS, "temperature": 1.0, "top_p": 1.0, "top_k": -1}
                body = orjson.dumps(
                    {"rid": "0", "input_ids": prompt.tolist(), "sampling_params": sampling, "return_logprob": True}
                )
                async with plain.post(f"{url}/generate", data=body, headers={"Content-Type": "application/json"}) as response:
                    reply = orjson.loads(await response.read())
                np.array(reply["output_ids"], dtype=np.int32)
                np.array([pair[0] for pair in reply["meta_info"]["output_token_logprobs"]], dtype=np.float32)

            for turn in range(ROUNDS + 1):
                sides: list[tuple[list[float], Callable[[], Awaitable[Any]]]] = [
                    (ours, lambda: client.generate(request)),
                    (bare, post),
                ]
                for times, one in sides if turn % 2 else sides[::-1]:
                    times.append(await cpu_seconds(one))
            ratios = [client_time / post_time for client_time, post_time in zip(ours[1:], bare[1:], strict=True)]
    finally:
        server.kill()
        server.join()
        sock.close()
    print(
        f"a request: client {statistics.median(ours[1:]) * 1e6:.0f} µs, bare post {statistics.median(bare[1:]) * 1e6:.0f} µs",
        flush=True,
    )
    row = _row("client/overhead", ratios, CLIENT_GOAL, "times the CPU time", f"bare aiohttp posts, {CONCURRENT} at a time")
    return row | {"better": "lower"}


async def cpu_seconds(one: Callable[[], Awaitable[Any]]) -> float:
    """CPU seconds of this process a call, `CONCURRENT` at a time."""

    async def worker() -> None:
        for _ in range(REQUESTS // CONCURRENT):
            await one()

    began = time.process_time()
    await asyncio.gather(*(worker() for _ in range(CONCURRENT)))
    return (time.process_time() - began) / REQUESTS


def _row(name: str, ratios: list[float], goal: float, unit: str, against: str) -> dict[str, Any]:
    return {
        "name": name,
        "ratio": round(statistics.median(ratios), 3),
        "goal": goal,
        "unit": unit,
        "runs": len(ratios),
        "against": against,
    }


if __name__ == "__main__":
    for row in run():
        print(row)

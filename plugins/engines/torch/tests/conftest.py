"""Tiny random models, and real servers started from the plugin's own command line."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import greedy_tokens
import pytest
import torch
from asyncrl import EnginePlace, RunFacts
from asyncrl_torch import TorchEngine, TorchEngineOptions
from transformers import Qwen3Config, Qwen3ForCausalLM

START_SECONDS = 120
GREEDY = {"temperature": 0, "ignore_eos": True}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def save_model(folder: Path, seed: int) -> Path:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        tie_word_embeddings=True,
        max_position_embeddings=4096,
        initializer_range=0.2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


class Server:
    """A running server and how to talk to it."""

    def __init__(self, process: subprocess.Popen[bytes], url: str) -> None:
        self.process = process
        self.url = url

    def call(self, path: str, body: Any = None, *, raw: bytes | None = None) -> tuple[int, dict[str, Any]]:
        """GET without a body, else POST; return status and JSON."""
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(urllib.request.Request(self.url + path, data=data), timeout=120) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def ok(self, path: str, body: Any = None) -> dict[str, Any]:
        status, answer = self.call(path, body)
        assert status == 200, answer
        return answer

    def generate(self, prompt: list[int], **sampling: Any) -> dict[str, Any]:
        return self.ok("/generate", {"input_ids": prompt, "sampling_params": sampling, "return_logprob": True})

    async def generate_all(self, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Send all at the same time."""
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

            async def one(body: dict[str, Any]) -> dict[str, Any]:
                async with session.post(self.url + "/generate", json=body) as response:
                    assert response.status == 200, await response.text()
                    return await response.json()

            return await asyncio.gather(*(one(body) for body in bodies))

    async def until_load(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until the load of `/v1/loads` is as wanted; return it."""
        async with asyncio.timeout(60):
            while not wanted(load := (await asyncio.to_thread(self.ok, "/v1/loads"))["loads"][0]):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return load

    @asynccontextmanager
    async def stream(self, body: dict[str, Any]) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """Open a stream; yield an iterator over its chunks."""
        async with (
            aiohttp.ClientSession(read_bufsize=2**22) as session,
            session.post(self.url + "/generate", json=body | {"stream": True}) as response,
        ):
            assert response.status == 200, await response.text()

            async def chunks() -> AsyncIterator[dict[str, Any]]:
                async for line in response.content:
                    if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                        yield json.loads(line[6:])

            yield chunks()


@pytest.fixture(scope="session")
def model_a(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "a", 1)


@pytest.fixture(scope="session")
def model_b(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "b", 2)


@pytest.fixture(scope="session")
def reference_a(model_a: Path) -> Qwen3ForCausalLM:
    torch.set_num_threads(1)
    return Qwen3ForCausalLM.from_pretrained(model_a).eval()


@pytest.fixture(scope="session")
def reference_b(model_b: Path) -> Qwen3ForCausalLM:
    return Qwen3ForCausalLM.from_pretrained(model_b).eval()


StartServer = Callable[..., Server]


@pytest.fixture(scope="module")
def start_server(model_a: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    """Start servers of model a from the plugin's command line; all end with the module."""
    started: list[subprocess.Popen[bytes]] = []

    def start(**options: Any) -> Server:
        run = RunFacts(batch_size=1, group_size=1, max_concurrent_samples=1, steps=1)
        engine = TorchEngine(TorchEngineOptions(**options), run)
        log = tmp_path_factory.mktemp("server") / "log.txt"
        place = EnginePlace(0, model_a, "127.0.0.1", free_port(), "cpu", "float32", 0, log)
        spec = engine.engine_server(place)
        with log.open("wb") as output:
            process = subprocess.Popen(spec.argv, env=os.environ | dict(spec.env), stdout=output, stderr=subprocess.STDOUT)
        started.append(process)
        server = Server(process, spec.url)
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert process.poll() is None, log.read_text()
            try:
                server.ok("/health")
                return server
            except (urllib.error.URLError, ConnectionError):  # not listening yet
                time.sleep(0.1)
        raise AssertionError(f"the server did not start: {log.read_text()}")

    yield start
    for process in started:
        process.terminate()
    for process in started:
        process.wait(30)


@pytest.fixture(scope="session")
def port() -> Callable[[], int]:
    return free_port


def _forward_logprobs(model: Any, prompt: list[int], output: list[int], temperature: float = 1.0) -> torch.Tensor:
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1].float()
    return torch.log_softmax(logits / temperature, dim=-1)


@pytest.fixture(scope="session")
def check_greedy() -> Callable[[Any, list[int], list[int]], None]:
    """Check that an output is a model's own greedy one."""
    return lambda model, prompt, output: greedy_tokens.check_greedy(_forward_logprobs(model, prompt, output), output)


@pytest.fixture(scope="session")
def forward_logprobs() -> Callable[..., torch.Tensor]:
    """float32[output, vocabulary] log-probabilities of a plain forward pass over prompt and output."""
    return _forward_logprobs

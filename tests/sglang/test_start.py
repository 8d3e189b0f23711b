"""What keeps a server from starting is one line with the server's own words, and leaves no process behind."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import numpy as np
import pytest
from asyncrl import RunFacts, SamplingParams
from asyncrl.errors import EngineError, OptionError, ResourceError
from asyncrl.plugins import PluginSpec
from asyncrl.rollout.client import EngineClient
from asyncrl.rollout.connection import make_session
from asyncrl.rollout.engine import EnginePlace, GenerateRequest
from asyncrl.runtime.engine_actor import EngineActor, EngineJob
from asyncrl.testing.models import default_model
from asyncrl_sglang import SGLangEngine, SGLangOptions
from listeners import is_local, listeners
from servers import FACTS, descendants, interpreter

KEY = "key-of-this-run-alone"
ENDPOINTS = [
    *((path, "GET") for path in ("/model_info", "/server_info", "/v1/loads", "/openapi.json")),
    *((path, "POST") for path in ("/generate", "/abort_request", "/pause_generation", "/continue_generation", "/flush_cache")),
    *((path, "POST") for path in ("/update_weights_from_disk", "/init_weights_update_group", "/update_weights_from_tensor")),
    *((path, "POST") for path in ("/update_weight_version", "/weights_checker", "/v1/completions")),
]


async def start(model: Path, folder: Path, port: int = 0, **options: Any) -> None:
    """Start an engine as a run does."""
    given = json.dumps({"python": interpreter(), **options})
    actor = EngineActor([PluginSpec("engine", "sglang", "asyncrl-plugin-sglang", "0.1.0", given)], FACTS)
    place = EnginePlace(0, model, "127.0.0.1", port, "cpu", "float32", 0, folder / "engine-0.txt")
    try:
        await actor.start(EngineJob("engine-0", place))
    finally:
        await actor.stop()


async def test_weights_that_cannot_be_read(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(default_model(), model)
    (model / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(EngineError, match=r"ended with code \d+ while starting: .*Safetensor.*engine-0.txt") as caught:
        await start(model, tmp_path)
    assert "\n" not in str(caught.value)


async def test_a_port_that_is_taken(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ResourceError, match=f"base_port: port {port} is in use"):
            await start(default_model(), tmp_path, port)


async def test_more_memory_than_there_is(tmp_path):
    with pytest.raises(EngineError, match="[Nn]o GPU memory for the KV cache|Not enough memory") as caught:
        await start(default_model(), tmp_path, memory_fraction=1e-6)
    assert "\n" not in str(caught.value)


async def test_bound_to_every_address_it_answers_nobody_who_has_not_the_key_and_nothing_else_leaves_loopback(tmp_path):
    given = json.dumps({"python": interpreter()})
    actor = EngineActor([PluginSpec("engine", "sglang", "asyncrl-plugin-sglang", "0.1.0", given)], FACTS)
    place = EnginePlace(0, default_model(), "0.0.0.0", 0, "cpu", "float32", 0, tmp_path / "engine-0.txt", KEY)
    try:
        address = await actor.start(EngineJob("engine-0", place))
        async with asyncio.timeout(120):
            while not await actor.healthy():  # noqa: ASYNC110 - it looks for some seconds, which a busy machine may need
                await asyncio.sleep(1.0)
        async with aiohttp.ClientSession() as session:
            for path, method in ENDPOINTS:
                for headers in ({}, {"Authorization": f"Bearer {KEY}x"}):
                    async with session.request(method, f"{address.spec.url}{path}", headers=headers, json={}) as answer:
                        assert answer.status == 401, f"{path} with {headers}"
        async with make_session() as session:
            client = EngineClient.of_spec("engine-0", address.spec, session, vocab_size=64, request_timeout=60)
            request = GenerateRequest(np.array([3, 4, 5], np.int32), SamplingParams(max_new_tokens=3), 0)
            assert len((await client.generate(request)).token_ids)
            assert await client.digest() and await client.load()
            await client.pause("retract")
            await client.resume()
            await client.close()
        served = urlsplit(address.spec.url).port
        assert [where for where in listeners(os.getpid()) if not is_local(where[0])] == [("0.0.0.0", served)]
        commands = [(Path("/proc") / str(pid) / "cmdline").read_text() for pid in descendants(os.getpid())]
        assert any("launch.py" in command for command in commands)
        assert KEY not in "".join(commands)
        assert KEY not in (tmp_path / "engine-0.txt").read_text()
    finally:
        await actor.stop()


def test_a_flag_that_this_version_does_not_have(tmp_path):
    engine = SGLangEngine(
        SGLangOptions(python=interpreter(), server_args={"max_runing_requests": 3, "sleep-on-idle": True}), FACTS
    )
    told = r"engine.server_args: SGLang 0\.5\.\d+ has no flag --max-runing-requests \(did you mean --max-running-requests\?\)"
    for _ in range(2):  # the second time from the list that the first one kept
        with pytest.raises(OptionError, match=told):
            engine.check_run(_cached(tmp_path))
    assert len(list(tmp_path.glob("sglang-flags-*.json"))) == 1


def _cached(folder: Path) -> RunFacts:
    return replace(FACTS, cache_dir=str(folder))

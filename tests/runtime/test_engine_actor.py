"""What owns a server starts it as it is told to, sees whether it is well, and starts it again."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import numpy as np
import pytest
from asyncrl import EnginePlace, Launch, RunFacts, SamplingParams, ServerSpec, hookimpl
from asyncrl.errors import EngineError, PluginFailed
from asyncrl.options import resolve
from asyncrl.rollout.client import EngineClient
from asyncrl.rollout.connection import make_session
from asyncrl.rollout.engine import GenerateRequest
from asyncrl.runtime.engine_actor import EngineActor, EngineJob
from asyncrl.testing.models import default_model
from asyncrl.training.publication import free_port
from asyncrl_torch import TorchEngine

pytestmark = pytest.mark.slow

KEY = "key-of-this-run-alone"
ENDPOINTS = [
    *((path, "GET") for path in ("/model_info", "/get_model_info", "/server_info", "/v1/loads", "/flush_cache", "/nothing")),
    *((path, "POST") for path in ("/generate", "/abort_request", "/pause_generation", "/continue_generation", "/flush_cache")),
    *((path, "POST") for path in ("/update_weights_from_disk", "/init_weights_update_group", "/destroy_weights_update_group")),
    *((path, "POST") for path in ("/begin_weight_update", "/update_weights_from_distributed", "/end_weight_update")),
    *((path, "POST") for path in ("/update_weight_version", "/weights_checker")),
]
FACTS = RunFacts(batch_size=1, group_size=1, max_concurrent_samples=1, steps=1)


@pytest.fixture
async def actor() -> AsyncIterator[EngineActor]:
    specs = [spec for spec in resolve(None, []).specs if spec.slot == "engine"]
    owner = EngineActor(specs, FACTS)
    yield owner
    await owner.stop()


def place(folder: Path) -> EnginePlace:
    return EnginePlace(0, default_model(), "127.0.0.1", 0, "cpu", "float32", 0, folder / "server.txt")


def server_of(port: int) -> int:
    """The process id of the server at a port."""
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(bytes(1)) if entry.name.isdigit() else []
        except OSError:
            continue
        if b"asyncrl_torch.server" in words and str(port).encode() in words and b"asyncrl.runtime.child" not in words:
            return int(entry.name)
    raise AssertionError(f"no server at port {port}")


async def test_a_launched_server_has_the_interpreter_devices_port_and_arguments_it_was_given_and_is_started_again(
    actor: EngineActor, tmp_path: Path
) -> None:
    python, starts = tmp_path / "python", tmp_path / "starts"
    python.write_text(f'#!/bin/sh\necho started >> {starts}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    port = free_port("127.0.0.1")
    launch = Launch(devices="5", port=port, server_args=("--max-running", "3"), python=str(python))
    job = EngineJob("eval-engine-0", place(tmp_path), launch)
    address = await actor.start(job)
    assert (address.name, address.spec.url) == ("eval-engine-0", f"http://127.0.0.1:{port}")
    server = server_of(port)
    process = Path("/proc") / str(server)
    assert (process / "cmdline").read_text().split("\0")[-3:-1] == ["--max-running", "3"]
    assert b"CUDA_VISIBLE_DEVICES=5\0" in (process / "environ").read_bytes()
    assert await actor.healthy()

    os.kill(server, signal.SIGKILL)
    async with asyncio.timeout(60):
        while await actor.running():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert not await actor.healthy()
    await actor.start(job)
    assert await actor.healthy()
    assert server_of(port) != server
    assert starts.read_text() == "started\n" * 2


async def test_a_server_that_nobody_answers_for_is_said_to_be_unhealthy_in_time(actor: EngineActor, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port('127.0.0.1')}"
    with pytest.raises(EngineError, match=f"the engine's server at {url} was not healthy within 0.5 s, at last: Cannot connect"):
        await actor.start(EngineJob("eval-engine-0", place(tmp_path), url=f"{url}/", patience=0.5))
    assert not await actor.healthy()


async def test_a_server_that_is_bound_to_every_address_is_reached_at_one_of_its_node(actor: EngineActor, tmp_path: Path) -> None:
    """As an engine on another node than the rollout's must be; then it answers nobody who has not the run's key."""
    address = await actor.start(EngineJob("engine-0", replace(place(tmp_path), host="0.0.0.0", api_key=KEY)))
    assert "//0.0.0.0:" not in address.spec.url
    assert "0.0.0.0" in address.spec.argv
    assert await actor.healthy()

    command = Path(f"/proc/{server_of(int(address.spec.url.rpartition(':')[2]))}/cmdline").read_text()
    assert KEY not in f"{command}{address}{(tmp_path / 'server.txt').read_text()}"
    async with aiohttp.ClientSession() as session:
        for path, method in ENDPOINTS:
            for headers in ({}, {"Authorization": f"Bearer {KEY}x"}, {"Authorization": KEY}, {"Authorization": "Bearer "}):
                async with session.request(method, f"{address.spec.url}{path}", headers=headers, data=b"{}") as answer:
                    assert answer.status == 401, f"{path} with {headers}"
                    assert KEY not in await answer.text()
        async with session.get(f"{address.spec.url}/health") as answer:
            assert answer.status == 200
    async with make_session() as session:
        client = EngineClient.of_spec("engine-0", address.spec, session, vocab_size=16, request_timeout=60)
        request = GenerateRequest(np.array([3, 4, 5], np.int32), SamplingParams(max_new_tokens=3), 0)
        assert len((await client.generate(request)).token_ids)
        assert await client.digest() and await client.load()
        await client.pause("retract")
        await client.resume()
        await client.close()


async def test_a_server_that_tells_its_key_when_it_ends_does_not_bring_it_into_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe = TorchEngine.engine_server
    code = "import os, sys; sys.exit('usage\\nerror: unrecognized arguments: --key ' + os.environ['ASYNCRL_ENGINE_KEY'])"

    def tells(self: TorchEngine, place: EnginePlace) -> ServerSpec:
        return replace(describe(self, place), argv=(sys.executable, "-c", code))

    monkeypatch.setattr(TorchEngine, "engine_server", hookimpl(tells))
    owner = EngineActor([spec for spec in resolve(None, []).specs if spec.slot == "engine"], FACTS)
    with pytest.raises(EngineError, match=r"while starting: error: unrecognized arguments: --key \*{10} ") as caught:
        await owner.start(EngineJob("engine-0", replace(place(tmp_path), host="0.0.0.0", api_key=KEY)))
    assert KEY not in f"{caught.value}{await owner.log_tail()}"


@pytest.mark.parametrize("knows", [True, False], ids=["that answers without it", "whose plugin knows of none"])
async def test_a_server_that_does_not_require_the_key_is_refused(
    knows: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe = TorchEngine.engine_server

    def without_key(self: TorchEngine, place: EnginePlace) -> ServerSpec:
        return replace(describe(self, replace(place, api_key="")), api_key=place.api_key if knows else "")

    monkeypatch.setattr(TorchEngine, "engine_server", hookimpl(without_key))
    owner = EngineActor([spec for spec in resolve(None, []).specs if spec.slot == "engine"], FACTS)
    with pytest.raises(PluginFailed, match="does not refuse a request without its key" if knows else "can't require a key"):
        await owner.start(EngineJob("engine-0", replace(place(tmp_path), host="0.0.0.0", api_key=KEY)))
    assert not await owner.healthy()

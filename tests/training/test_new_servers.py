"""An engine that gets another server, before and in the middle of an update, over real HTTP: only what reached that server counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from asyncrl.errors import PublicationError
from asyncrl.rollout.client import EngineClient
from asyncrl.rollout.connection import make_session
from asyncrl.rollout.engine import GenerateRequest
from asyncrl.rollout.pool import EnginePool
from asyncrl.rollout.weights import EngineWeights
from asyncrl.samples import SamplingParams
from http_engine import WEIGHTS, HttpEngine, digest_of


class Fleet:
    """Two servers at fixed addresses, whose checksums cannot be compared with the trainer's, and their clients."""

    def __init__(self, servers: list[HttpEngine], clients: list[EngineClient], folder: Path) -> None:
        self.servers = servers
        self.clients = clients
        self.folder = folder
        self.weights = EngineWeights(clients, timeout=30, digest=digest_of("initial"), restart_digest=digest_of("initial"))

    async def load(self, version: int, text: str) -> None:
        path = self.folder / f"v-{version}"
        path.mkdir(exist_ok=True)
        (path / WEIGHTS).write_text(text)
        await self.weights.load_from_disk(version, path, digest_of(text), "retract")

    async def new_server(self, index: int) -> None:
        """The server dies and another starts at the same address, as with a fixed port."""
        old, client = self.servers[index], self.clients[index]
        await old.stop()
        client.lost()
        old.label, old.weights, old.paused, old.groups = "default", "initial", False, {}
        await old.start()
        self.weights.moved(client, old.url)


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    session = make_session()
    servers = [await HttpEngine(comparable=False).start() for _ in range(2)]
    clients = [
        EngineClient(f"engine-{i}", server.url, session, vocab_size=64, request_timeout=30, comparable_digest=False)
        for i, server in enumerate(servers)
    ]
    fleet = Fleet(servers, clients, tmp_path)
    yield fleet
    await fleet.weights.close()
    await session.close()
    for server in servers:
        await server.stop()


async def test_a_new_server_gets_no_requests_however_healthy_until_an_update_reaches_it(fleet: Fleet) -> None:
    await fleet.load(1, "first")
    await fleet.new_server(0)
    pool = EnginePool(fleet.clients, health_interval=0)
    await pool.look()
    request = GenerateRequest(np.array([1], dtype=np.int32), SamplingParams(5), 0)
    answers = await asyncio.gather(*(pool.generate(request) for _ in range(4)))
    assert {answer.spans for answer in answers} == {((1, 5),)}
    assert fleet.servers[0].called("/generate") == []
    assert fleet.clients[0].alive is False
    await fleet.load(1, "first")  # the present weights once more
    assert [client.alive for client in fleet.clients] == [True, True]
    assert [server.weights for server in fleet.servers] == ["first", "first"]


async def test_a_server_that_starts_without_any_publication_so_far_is_brought_to_version_0(fleet: Fleet) -> None:
    await fleet.new_server(0)
    assert not await fleet.clients[0].healthy()
    await fleet.load(0, "initial")
    assert await fleet.clients[0].healthy()


@pytest.mark.parametrize("call", ["/pause_generation", "/update_weights_from_disk", "/weights_checker"])
async def test_what_an_earlier_server_received_does_not_count(fleet: Fleet, call: str) -> None:
    """The server is replaced while an update is at work, right after this call of it."""
    await fleet.load(1, "first")
    client = fleet.clients[0]
    made = client._connection.call

    async def then_dies(path: str, *arguments, **more):
        answer = await made(path, *arguments, **more)
        if path == call and client.life == 0:
            await fleet.new_server(0)
        return answer

    client._connection.call = then_dies
    await fleet.load(2, "second")
    assert (client.alive, fleet.clients[1].alive) == (False, True)
    await fleet.load(2, "second")
    assert [each.alive for each in fleet.clients] == [True, True]
    assert [(each.label, each.weights, each.paused) for each in fleet.servers] == [("2", "second", False)] * 2


async def test_a_new_server_that_only_says_that_it_took_the_present_weights_again_is_not_believed(fleet: Fleet) -> None:
    await fleet.servers[1].stop()
    await fleet.load(1, "first")
    await fleet.new_server(0)
    fleet.servers[0].fail("/update_weights_from_disk", "silent", "silent")
    with pytest.raises(PublicationError, match="its weights did not change"):
        await fleet.load(1, "first")


async def test_an_update_that_no_present_server_received_fails(fleet: Fleet) -> None:
    for index, client in enumerate(fleet.clients):
        confirmed = client.served_version

        async def then_dies(index: int = index, confirmed=confirmed):
            version = await confirmed()
            await fleet.new_server(index)
            return version

        client.served_version = then_dies
    with pytest.raises(PublicationError, match="its server died in the middle of it"):
        await fleet.load(1, "first")
    assert not any(client.alive for client in fleet.clients)

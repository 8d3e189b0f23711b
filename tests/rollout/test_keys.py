"""Servers that require a key: every request that reaches them carries it, through a router too, and no error quotes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import numpy as np
import pytest
from asyncrl.errors import AsyncrlError, EngineError
from asyncrl.network import key_for
from asyncrl.rollout.client import EngineClient
from asyncrl.rollout.connection import make_session
from asyncrl.rollout.engine import GenerateRequest
from asyncrl.rollout.front import Front
from asyncrl.rollout.routed_pool import RoutedPool
from asyncrl.rollout.takeover import Served
from asyncrl.rollout.weights import EngineWeights
from asyncrl.samples import SamplingParams
from asyncrl.scrub import MASK
from http_engine import WEIGHTS, HttpEngine, digest_of
from http_router import HttpRouter

KEYS = [key_for("0.0.0.0"), key_for("0.0.0.0")]


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with make_session() as session:
        yield session


@pytest.fixture
async def servers() -> AsyncIterator[list[HttpEngine]]:
    servers = [await HttpEngine().start() for _ in KEYS]
    for server, key in zip(servers, KEYS, strict=True):
        server.key, server.echoes = key, True
    yield servers
    for server in servers:
        await server.stop()


def clients_of(servers: list[HttpEngine], session: aiohttp.ClientSession, keys: list[str]) -> list[EngineClient]:
    return [
        EngineClient(f"engine-{index}", server.url, session, vocab_size=64, request_timeout=30, api_key=key)
        for index, (server, key) in enumerate(zip(servers, keys, strict=True))
    ]


def request(group: int) -> GenerateRequest:
    return GenerateRequest(np.array([1], dtype=np.int32), SamplingParams(5), group)


async def publish(weights: EngineWeights, folder: Path) -> None:
    (folder / WEIGHTS).write_text("one")
    await weights.load_from_disk(1, folder, digest_of("one"), "retract")


def test_a_key_is_new_for_each_run_and_a_word_that_no_command_line_takes_for_a_flag() -> None:
    assert key_for("127.0.0.1") == key_for("localhost") == ""
    assert KEYS[0] != KEYS[1] and all(len(key) == 64 and key.isalnum() for key in KEYS)


async def test_every_call_of_a_client_carries_the_key(
    servers: list[HttpEngine], session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """What an actor that takes over asks, a publication, requests and looks."""
    clients = clients_of(servers, session, KEYS)
    weights = EngineWeights(clients, timeout=30)
    assert await weights.take_over(Served(0, digest_of("initial"))) == []
    await publish(weights, tmp_path)
    for client in clients:
        assert (await client.generate(request(0))).spans == ((1, 5),)
        assert await client.healthy() and await client.reachable()
        client.abort("a request")
        await client.close()
    await weights.close()


async def test_requests_through_a_router_carry_the_key_of_the_engine_that_gets_them(
    servers: list[HttpEngine], session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    clients = clients_of(servers, session, KEYS)
    front = Front(HttpRouter(), clients, session, vocab_size=64, request_timeout=30)
    pool = RoutedPool(front, clients, backoff=0.01, health_interval=0.02)
    weights = EngineWeights(clients, timeout=30, leave_out=front.leave_out)
    await front.start(30)
    await publish(weights, tmp_path)
    answers = await asyncio.gather(*(pool.generate(request(group)) for group in range(4)))
    assert {answer.spans for answer in answers} == {((1, 5),)}
    assert all(server.called("/generate") for server in servers)
    await pool.close()
    await front.close()
    for client in clients:
        await client.close()


@pytest.mark.parametrize("fault", ["400", "500", "another key"])
async def test_no_error_quotes_a_key_also_when_the_server_does(
    fault: str, servers: list[HttpEngine], session: aiohttp.ClientSession
) -> None:
    keys = [KEYS[0], f"{KEYS[1]}x"] if fault == "another key" else KEYS
    server, client = servers[1], clients_of(servers, session, keys)[1]
    for path, call in (("/generate", client.generate(request(0))), ("/flush_cache", client.flush_cache())):
        if fault != "another key":
            server.fail(path, fault)
        with pytest.raises(AsyncrlError) as caught:
            await call
        assert f"Bearer {MASK}" in str(caught.value) and keys[1] not in str(caught.value)
    await client.close()


async def test_a_router_that_quotes_what_it_was_told_shows_no_key(
    servers: list[HttpEngine], session: aiohttp.ClientSession
) -> None:
    clients = clients_of(servers, session, KEYS)
    front = Front(SimpleNamespace(), clients, session, vocab_size=64, request_timeout=30)
    quoted = f'{{"workers": [{{"url": "{servers[0].url}", "api_key": "{KEYS[0]}"}}]}}'
    for refusal in (front._connection.refusal("/workers", 422, quoted.encode()), front._connection.fault(quoted, OSError())):
        assert isinstance(refusal, EngineError) and MASK in str(refusal) and KEYS[0] not in str(refusal)
    for client in clients:
        await client.close()

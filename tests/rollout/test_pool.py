"""Where requests go, and what becomes of them when engines fail."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import numpy as np
import pytest
from asyncrl.errors import EnginesLost, RequestFailed
from asyncrl.rollout.client import EngineClient
from asyncrl.rollout.connection import make_session
from asyncrl.rollout.engine import GenerateRequest
from asyncrl.rollout.pool import EnginePool
from asyncrl.samples import Completion, SamplingParams
from http_engine import HttpEngine

Started = tuple[EnginePool, list[HttpEngine], list[EngineClient]]
Start = Callable[..., Awaitable[Started]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Start servers and a pool over them; all end with the test."""
    servers: list[HttpEngine] = []
    pools: list[EnginePool] = []
    session: aiohttp.ClientSession = make_session()

    async def start(count: int, *, request_timeout: float = 30.0, **options: Any) -> Started:
        servers.extend([await HttpEngine().start() for _ in range(count)])
        clients = [
            EngineClient(f"engine-{i}", server.url, session, vocab_size=64, request_timeout=request_timeout)
            for i, server in enumerate(servers)
        ]
        pool = EnginePool(clients, **{"backoff": 0.01, "health_interval": 0.02, **options})
        pools.append(pool)
        return pool, servers, clients

    yield start
    for pool in pools:
        await pool.close()
    await session.close()
    for server in servers:
        await server.stop()


def request(affinity: int = 0) -> GenerateRequest:
    return GenerateRequest(np.array([1], dtype=np.int32), SamplingParams(5), affinity)


def ask(pool: EnginePool, count: int, affinity: int = 0) -> list[asyncio.Task[Completion]]:
    return [asyncio.create_task(pool.generate(request(affinity))) for _ in range(count)]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - many parties change it
            await asyncio.sleep(0.005)


def counted(pool: EnginePool, name: str) -> float:
    """Total of a counter so far, taken."""
    return sum(pool.metrics.drain().get(f"engines/{name}", {}).values())


async def test_a_request_goes_to_the_engine_with_the_fewest_in_flight(start: Start) -> None:
    pool, servers, clients = await start(3)
    for server in servers:
        server.hold_after = 1
    asked = [*ask(pool, 9, affinity=0), *ask(pool, 3, affinity=1)]
    await until(lambda: sum(client.in_flight for client in clients) == 12)
    assert [client.in_flight for client in clients] == [4, 4, 4]
    await servers[1].release()
    await until(lambda: clients[1].in_flight == 0)
    asked += ask(pool, 3)
    await until(lambda: clients[1].in_flight == 0 and len(servers[1].called("/generate")) == 7)
    for server in servers:
        await server.release()
    await asyncio.gather(*asked)


async def test_among_equals_a_group_stays_on_one_engine(start: Start) -> None:
    pool, servers, _ = await start(3)
    for _ in range(4):
        await pool.generate(request(affinity=7))
    assert sorted(len(server.called("/generate")) for server in servers) == [0, 0, 4]
    for affinity in range(3):
        await pool.generate(request(affinity))
    assert sorted(len(server.called("/generate")) for server in servers) == [1, 1, 5]


@pytest.mark.parametrize("fault", ["500", "close", "close_mid_body", "garbage"])
async def test_a_transient_failure_is_tried_again_on_another_engine(start: Start, fault: str) -> None:
    """Field reports 10 and 12."""
    pool, servers, _ = await start(2)
    servers[0].fail("/generate", *[fault] * 9)
    assert len((await pool.generate(request())).token_ids) == 5
    assert [len(server.called("/generate")) for server in servers] == [1, 1]
    assert counted(pool, "retries") == 1


async def test_a_failure_that_lasts_ends_the_request_with_its_cause(start: Start) -> None:
    """Field report 12: a typed error after a bounded number of tries, and the engine stays in use."""
    pool, (server,), (client,) = await start(1, max_attempts=3)
    server.fail("/generate", "500", "close", "500")
    with pytest.raises(RequestFailed, match=r"failed 3 times, at last with: engine-0: /generate answered 500: .*scripted 500"):
        await pool.generate(request())
    assert client.alive
    assert counted(pool, "failures") == 1
    assert len((await pool.generate(request())).token_ids) == 5


async def test_requests_that_never_return_end_too(start: Start) -> None:
    """Field report 11."""
    pool, (server,), _ = await start(1, request_timeout=0.1, max_attempts=2)
    server.fail("/generate", "hang", "hang")
    with pytest.raises(RequestFailed, match="failed 2 times, at last with: engine-0: a request got no answer"):
        await pool.generate(request())


async def test_a_wrong_request_is_not_tried_again(start: Start) -> None:
    pool, servers, _ = await start(2)
    servers[0].fail("/generate", "400")
    with pytest.raises(RequestFailed, match="refused with 400"):
        await pool.generate(request())
    assert not servers[1].called("/generate") and counted(pool, "retries") == 0


async def test_an_engine_that_is_gone_gets_nothing_until_it_is_back(start: Start) -> None:
    """Field report 12: its requests go to the others in the meantime."""
    pool, servers, clients = await start(2)
    servers[0].hold_after = 1
    asked = ask(pool, 1)
    await servers[0].until(lambda: len(servers[0].generated) == 1)
    await servers[0].stop()
    assert len((await asked[0]).token_ids) == 5
    await until(lambda: not clients[0].alive)
    before = len(servers[1].called("/generate"))
    await asyncio.gather(*ask(pool, 6))
    assert len(servers[1].called("/generate")) == before + 6
    await servers[0].release()
    await servers[0].start()
    await until(lambda: clients[0].alive)
    await asyncio.gather(*ask(pool, 6))
    assert len(servers[0].called("/generate")) > 1
    assert counted(pool, "deaths") == 1


async def test_a_restarted_engine_with_old_weights_gets_no_requests(start: Start) -> None:
    pool, servers, clients = await start(2)
    for server, client in zip(servers, clients, strict=True):
        server.label, client.version = "5", 5
    await pool.generate(request())
    servers[0].label = "default"  # started anew between two looks
    await until(lambda: not clients[0].alive)
    looks = len(servers[0].called("/model_info"))
    await servers[0].until(lambda: len(servers[0].called("/model_info")) > looks + 3)
    assert not clients[0].alive
    servers[0].label = "5"
    await until(lambda: clients[0].alive)


async def test_without_an_engine_requests_wait_and_say_so(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    pool, (server,), (client,) = await start(1)
    await server.stop()
    with caplog.at_level(logging.WARNING, "asyncrl"):
        asked = ask(pool, 3)
        await until(lambda: not client.alive and "no engine is alive; requests wait for one of engine-0" in caplog.text)
        await server.start()
        for completion in await asyncio.gather(*asked):
            assert len(completion.token_ids) == 5
    assert caplog.text.count("no engine is alive") == 1 and "engine-0 is back" in caplog.text


async def test_without_an_engine_for_too_long_the_run_is_told(start: Start) -> None:
    """Field report 12: a wait with an end."""
    pool, servers, _ = await start(2, lost_timeout=0.2, max_attempts=9)
    for server in servers:
        await server.stop()
    with pytest.raises(EnginesLost, match=r"no engine is alive, for .* s now: engine-0, engine-1"):
        await pool.generate(request())


async def test_requests_that_a_dying_engine_gave_up_are_tried_elsewhere(start: Start) -> None:
    pool, servers, clients = await start(2)
    servers[0].hold_after = 1
    (asked,) = ask(pool, 1)
    await servers[0].until(lambda: len(servers[0].generated) == 1)
    clients[0].alive, clients[0].unfit = False, True
    await clients[0].abort_all()
    completion = await asked
    assert completion.finish_reason == "length" and servers[1].called("/generate")


async def test_what_an_engine_answers_under_half_updated_weights_is_not_used(start: Start) -> None:
    """A server may hold requests where no abort reaches them, and generate them when it goes on."""
    pool, servers, clients = await start(2)
    servers[0].hold_after = 1
    (asked,) = ask(pool, 1)
    await servers[0].until(lambda: len(servers[0].generated) == 1)
    clients[0].alive, clients[0].unfit = False, True
    await servers[0].release()
    completion = await asked
    assert completion.finish_reason == "length" and servers[1].called("/generate")


async def test_cancelling_a_request_leaves_nothing_behind(start: Start) -> None:
    pool, (server,), (client,) = await start(1)
    server.hold_after = 1
    (asked,) = ask(pool, 1)
    await server.until(lambda: len(server.generated) == 1)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    await client.close()
    await server.until(lambda: not server.generated)
    assert client.in_flight == 0

"""A router in front of the engines: it sends to engines that live and to no other, and its own death costs no request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy as np
import pytest
from asyncrl.errors import EngineError, EnginesLost
from asyncrl.rollout.client import EngineClient
from asyncrl.rollout.connection import make_session
from asyncrl.rollout.engine import GenerateRequest
from asyncrl.rollout.front import Front
from asyncrl.rollout.routed_pool import RoutedPool
from asyncrl.rollout.weights import EngineWeights
from asyncrl.samples import Completion, SamplingParams
from http_engine import WEIGHTS, HttpEngine, digest_of
from http_router import HttpRouter


class World:
    """Two engines behind a router, as a run has them."""

    def __init__(self, engines: list[HttpEngine], session, folder: Path) -> None:
        self.servers = engines
        self.folder = folder
        self.router = HttpRouter()
        self.clients = [
            EngineClient(f"engine-{i}", server.url, session, vocab_size=64, request_timeout=30)
            for i, server in enumerate(engines)
        ]
        self.front = Front(self.router, self.clients, session, vocab_size=64, request_timeout=30, max_restarts=2)
        self.pool = RoutedPool(self.front, self.clients, backoff=0.01, health_interval=0.02)
        self.weights = EngineWeights(self.clients, timeout=30, leave_out=self.front.leave_out)

    async def publish(self, version: int, text: str) -> None:
        path = self.folder / f"v-{version}"
        path.mkdir(exist_ok=True)
        (path / WEIGHTS).write_text(text)
        await self.weights.load_from_disk(version, path, digest_of(text), "retract")

    async def hold(self, count: int) -> list[asyncio.Task[Completion]]:
        """Start so many requests, one a group, and hold each after two tokens."""
        for server in self.servers:
            server.hold_after = 2
        asked = [asyncio.create_task(self.pool.generate(request(group))) for group in range(count)]
        await until(lambda: sum(list(server.generated.values()).count(2) for server in self.servers) == count)
        return asked

    async def release(self) -> None:
        for server in self.servers:
            await server.release()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    session = make_session()
    servers = [await HttpEngine().start() for _ in range(2)]
    world = World(servers, session, tmp_path)
    await world.front.start(30)
    yield world
    await world.weights.close()
    await world.pool.close()
    await world.front.close()
    for client in world.clients:
        await client.close()
    await session.close()
    for server in servers:
        await server.stop()


def request(group: int) -> GenerateRequest:
    return GenerateRequest(np.array([1], dtype=np.int32), SamplingParams(5), group)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - many parties change it
            await asyncio.sleep(0.005)


def spans(answers: list[Completion]) -> set[tuple[tuple[int, int], ...]]:
    return {answer.spans for answer in answers}


async def test_a_group_goes_to_one_engine_and_groups_to_all(world: World) -> None:
    await asyncio.gather(*(world.pool.generate(request(group)) for group in range(4) for _ in range(3)))
    places = {key: {url for found, url in world.router.sent if found == key} for key, _ in world.router.sent}
    assert sorted(places) == ["0", "1", "2", "3"] and all(len(urls) == 1 for urls in places.values())
    assert {url for urls in places.values() for url in urls} == {client.url for client in world.clients}


async def test_a_publication_in_the_middle_of_requests_is_sent_to_each_engine_and_aborts_none(world: World) -> None:
    asked = await world.hold(4)
    await world.publish(1, "one")
    await world.release()
    assert spans(await asyncio.gather(*asked)) == {((0, 2), (1, 3))}
    assert len(world.router.sent) == 4, "none was sent twice"


async def test_engines_that_tell_no_spans_count_as_the_oldest_version_that_could_have_answered(world: World) -> None:
    for server in world.servers:
        server.spans = False
    asked = await world.hold(2)
    await world.publish(1, "one")
    await world.release()
    assert spans(await asyncio.gather(*asked)) == {((0, 5),)}
    assert spans([await world.pool.generate(request(0))]) == {((1, 5),)}
    world.clients[1].version = 0  # it was not reached, and the router does not know yet
    world.clients[1].alive = False
    assert spans([await world.front.generate(request(0))]) == {((0, 5),)}


async def test_the_requests_of_an_engine_that_dies_go_to_the_others(world: World) -> None:
    asked = await world.hold(4)
    await world.servers[0].stop()
    await world.release()
    answers = await asyncio.gather(*asked)
    assert [len(answer.token_ids) for answer in answers] == [5] * 4
    assert not world.clients[0].alive and list(world.router.workers) == [world.clients[1].url]


async def test_an_engine_with_a_new_server_is_behind_the_router_only_once_the_weights_have_reached_it(world: World) -> None:
    world.pool.bury(world.clients[0], "its server died")
    world.clients[0].lost()
    await world.front.leave_out()
    assert list(world.router.workers) == [world.clients[1].url]
    fresh = await HttpEngine().start()
    world.weights.moved(world.clients[0], fresh.url)
    for group in range(4):
        await world.pool.look()
        await world.pool.generate(request(group))
    assert not fresh.called("/generate") and fresh.url not in world.router.workers
    await world.publish(1, "one")
    await until(lambda: fresh.url in world.router.workers)
    await asyncio.gather(*(world.pool.generate(request(group)) for group in range(100, 104)))
    assert fresh.called("/generate")
    await fresh.stop()


async def test_an_engine_that_an_update_spoilt_is_left_out_before_it_goes_on(world: World) -> None:
    asked = await world.hold(2)
    world.servers[0].fail("/update_weights_from_disk", "500", "500")
    resumed = []
    left_out = world.weights._leave_out

    async def leave_out() -> None:
        await left_out()
        resumed.append((list(world.router.workers), world.servers[0].paused))

    world.weights._leave_out = leave_out
    await world.publish(1, "one")
    assert resumed == [([world.clients[1].url], True)]
    await world.release()
    answers = await asyncio.gather(*asked)
    assert {answer.finish_reason for answer in answers} == {"length"}
    assert spans(answers) <= {((0, 2), (1, 3)), ((1, 5),)}


@pytest.mark.parametrize("fault", ["keeps it", "was adding it"])
async def test_a_router_that_cannot_be_relied_on_to_leave_an_engine_out_is_ended(world: World, fault: str, monkeypatch) -> None:
    monkeypatch.setattr("asyncrl.rollout.front.LEAVE_SECONDS", 0.1)
    client = world.clients[0]
    if fault == "was adding it":
        client.alive = False
        await until(lambda: client.url not in world.router.workers)
        world.router.joins = False
        client.alive = True
        await until(lambda: client.url in world.router.joining)
    else:
        world.router.keeps = True
    client.alive = False
    await world.front.leave_out()
    assert client.url not in world.router.workers and client.url not in world.router.joining
    world.router.joins, world.router.keeps = True, False
    assert len((await world.pool.generate(request(0))).token_ids) == 5
    assert world.router.starts == 2


async def test_an_engine_that_could_not_be_added_is_added_again(world: World) -> None:
    client = world.clients[0]
    client.alive = False
    await until(lambda: client.url not in world.router.workers)
    world.router.fails_joins = True
    client.alive = True
    await until(lambda: client.url in world.router.joining)
    world.router.fails_joins = False
    world.router.joining.clear()
    await until(lambda: client.url in world.router.workers)


async def test_a_router_that_dies_is_started_again_and_its_requests_with_it(world: World) -> None:
    asked = await world.hold(3)
    await world.router.stop()
    await world.release()
    answers = await asyncio.gather(*asked)
    assert [len(answer.token_ids) for answer in answers] == [5] * 3
    assert world.router.starts == 2 and world.front.metrics.drain()["engines/router_restarts"] == {"": 1}


async def test_a_router_that_does_not_come_back_is_one_error(world: World) -> None:
    world.router.start_errors = ["the router ended with code 1 while starting: no memory"] * 9
    asked = await world.hold(1)
    await world.router.stop()
    with pytest.raises(EnginesLost, match=r"was started again 2 times \(max_engine_restarts\): .*no memory"):
        await asyncio.gather(*asked)


async def test_a_router_that_takes_no_engine_is_an_error_at_start(world: World) -> None:
    router = HttpRouter()
    router.joins = False
    front = Front(router, world.clients, world.front._connection.session, vocab_size=64, request_timeout=30)
    with pytest.raises(EngineError, match="did not take engine-0 at http"):
        await front.start(0.2)
    await front.close()


async def test_a_request_that_nobody_waits_for_is_aborted_at_the_engines(world: World) -> None:
    (asked,) = await world.hold(1)
    asked.cancel()
    await until(lambda: all(server.called("/abort_request") for server in world.servers))
    await until(lambda: not any(server.generated for server in world.servers))

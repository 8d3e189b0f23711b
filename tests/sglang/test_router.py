"""SGLang's own router in front of real servers: where requests go, and what a publication and a death do to them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import pytest
from asyncrl.rollout.client import EngineClient
from asyncrl.rollout.connection import make_session
from asyncrl.rollout.engine import GenerateRequest
from asyncrl.rollout.front import Front
from asyncrl.rollout.routed_pool import RoutedPool
from asyncrl.rollout.weights import EngineWeights
from asyncrl.runtime.front_process import FrontProcess
from asyncrl.samples import Completion, SamplingParams
from asyncrl_sglang import SGLangEngine, SGLangOptions
from http_engine import HttpEngine
from models import check_answer, logprobs, logprobs_on_an_old_cache
from publishing import Source
from servers import FACTS, descendants, interpreter
from test_demo import launch
from test_recovery import busy

PROMPTS = [[3 + index, 20, 30, 40, 50, 11] for index in range(6)]
COUNT = 1000  # takes some seconds: whatever is done to a server meets requests in their middle
MOST = 3000
TAIL = 16
START_SECONDS = 300.0


class Process(FrontProcess):
    """One router for all tests; a `Front` that is closed leaves it running."""

    kept = False
    url = ""

    async def start(self) -> str:
        if not self.running():
            self.url = await super().start()
        return self.url

    async def stop(self) -> None:
        if not self.kept:
            await super().stop()


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    engine = SGLangEngine(SGLangOptions(python=interpreter(), router="sglang-router"), FACTS)
    engine.check_run(FACTS)
    log = tmp_path_factory.mktemp("router") / "router.txt"
    process = Process(lambda place: engine.engine_front(place), request_timeout=120, log_file=log)
    yield process
    process.kept = False
    asyncio.run(process.stop())


@pytest.fixture
async def routed(world, process: Process) -> AsyncIterator:
    """Both servers behind the router, which has no retries, no health checks and no circuit breaker of its own."""
    session = world.clients[0]._connection.session
    world.front = Front(process, world.clients, session, vocab_size=64, request_timeout=120)
    process.kept = False
    await world.front.start(START_SECONDS)
    world.pool = RoutedPool(world.front, world.clients, backoff=0.1, health_interval=1.0)
    world.weights = EngineWeights(world.clients, timeout=60.0, leave_out=world.front.leave_out)
    yield world
    process.kept = True
    await world.front.close()


def ask(group: int, count: int) -> GenerateRequest:
    return GenerateRequest(np.array(PROMPTS[group], dtype=np.int32), SamplingParams(count, temperature=0.0), group)


def check(answers: list[Completion], model, version: int) -> None:
    """Fail unless each prompt's answer is a version's, and greedy under its model."""
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        assert answer.spans == ((version, len(answer.token_ids)),)
        check_answer(answer, logprobs(model, prompt, answer.token_ids.tolist()))


async def start(world, through, count: int = COUNT) -> list[asyncio.Task[Completion]]:
    """One request of each group, on both servers."""
    flying = [asyncio.create_task(through.generate(ask(group, count))) for group in range(len(PROMPTS))]
    async with asyncio.timeout(120):
        while not all([await asyncio.to_thread(busy, server) for server in world.servers]):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return flying


def generations(server) -> int:
    """Requests that a server was sent so far, as its own log says."""
    return server.log.read_text(errors="replace").count("POST /generate ")


async def test_groups_are_spread_over_the_servers_and_each_keeps_to_one(routed, models, reference):
    before = [generations(server) for server in routed.servers]
    answers = await asyncio.gather(*(routed.pool.generate(ask(group, TAIL)) for group in range(len(PROMPTS))))
    check(answers, reference(models.a), version=0)
    sent = [generations(server) - count for server, count in zip(routed.servers, before, strict=True)]
    assert sorted(sent) == [3, 3], "a new group goes to the server that has the fewest requests"
    usage = routed.front.usage
    first = usage.prompt_tokens, usage.cached_tokens
    await asyncio.gather(*(routed.pool.generate(ask(group, 4)) for group in range(len(PROMPTS))))
    assert usage.cached_tokens - first[1] == usage.prompt_tokens - first[0] - len(PROMPTS), (
        "all but the last token of each prompt"
    )


@pytest.mark.parametrize(("method", "mode"), [pytest.param("disk", "retract", marks=pytest.mark.long), ("broadcast", "in_place")])
async def test_a_publication_in_the_middle_of_requests_aborts_and_repeats_none(routed, models, reference, method, mode):
    a, b = reference(models.a), reference(models.b)
    before = [generations(server) for server in routed.servers]
    publisher = routed.publisher(method, mode, Source(b))
    flying = await start(routed, routed.front, MOST)
    assert await publisher.publish(1.0) == 1
    assert not any(each.done() for each in flying), "the publication ended a request"
    after = await asyncio.gather(*(routed.pool.generate(ask(group, TAIL)) for group in range(len(PROMPTS))))
    check(after, b, version=1)
    for client in routed.clients:
        await client.abort_all()
    await publisher.close()
    for prompt, answer in zip(PROMPTS, await asyncio.gather(*flying), strict=True):
        assert [version for version, _ in answer.spans] == [0, 1]
        output, cut = answer.token_ids.tolist(), answer.spans[0][1]
        head, tail = prompt + output[:cut], output[cut:]
        check_answer(answer, logprobs(a, prompt, output[:cut]))
        rows = logprobs(b, head, tail) if mode == "retract" else logprobs_on_an_old_cache(a, b, head, tail)
        check_answer(answer, rows, begin=cut)
    sent = [generations(server) - count for server, count in zip(routed.servers, before, strict=True)]
    assert sum(sent) == 2 * len(PROMPTS)


async def test_a_server_that_comes_back_at_its_old_address_gets_nothing_before_the_weights_have_reached_it(
    routed, models, reference
):
    """kill -9 while it generates; its requests are answered by the other one."""
    server, client = routed.servers[0], routed.clients[0]
    flying = await start(routed, routed.pool)
    await asyncio.to_thread(server.kill)
    answers = await asyncio.wait_for(asyncio.gather(*flying), 240)
    assert [(answer.finish_reason, len(answer.token_ids)) for answer in answers] == [("length", COUNT)] * len(PROMPTS)
    client.lost()  # as the run does when its supervisor finds it dead
    await routed.front.leave_out()
    await asyncio.to_thread(lambda: (server.start(), server.wait()))
    routed.weights.moved(client, server.url)
    before = generations(server)
    for _ in range(3):
        await routed.pool.look()
        answers = await asyncio.gather(*(routed.pool.generate(ask(group, 4)) for group in range(len(PROMPTS))))
    assert generations(server) == before and not client.alive

    b = reference(models.b)
    assert await routed.publisher("disk", "retract", Source(b)).publish(1.0) == 1
    async with asyncio.timeout(120):
        while client.url not in routed.front._workers:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    answers = await asyncio.gather(*(routed.pool.generate(ask(group, TAIL)) for group in range(len(PROMPTS))))
    check(answers, b, version=1)
    assert generations(server) > before


async def test_requests_carry_the_key_of_the_server_that_gets_them_and_the_router_shows_none(process: Process, tmp_path: Path):
    """The real router, in front of scripted servers that require a key each."""
    engines = [await HttpEngine().start() for _ in range(2)]
    for index, engine in enumerate(engines):
        engine.key = f"key-of-server-{index}"
    process.kept = False
    async with make_session() as session:
        clients = [
            EngineClient(f"engine-{index}", engine.url, session, vocab_size=64, request_timeout=120, api_key=engine.key)
            for index, engine in enumerate(engines)
        ]
        front = Front(process, clients, session, vocab_size=64, request_timeout=120)
        await front.start(START_SECONDS)
        answers = await asyncio.gather(*(front.generate(ask(group, 4)) for group in range(len(PROMPTS))))
        assert [len(answer.token_ids) for answer in answers] == [4] * len(PROMPTS)
        assert all(engine.called("/generate") for engine in engines)
        shown = ""
        for path in ("/workers", "/get_server_info", "/get_model_info"):
            async with session.get(f"{process.url}{path}") as answer:
                shown += await answer.text()
        assert engines[0].url in shown
        await front.close()
    for engine in engines:
        await engine.stop()
    assert "key-of-server" not in f"{shown}{process._log_file.read_text()}"


@pytest.mark.long
async def test_a_router_that_is_killed_is_started_again_and_its_requests_with_it(routed, process):
    flying = await start(routed, routed.pool)
    for pid in list(descendants(process._process.pid)):
        os.kill(pid, signal.SIGKILL)
    answers = await asyncio.wait_for(asyncio.gather(*flying), START_SECONDS)
    assert [(answer.finish_reason, len(answer.token_ids)) for answer in answers] == [("length", COUNT)] * len(PROMPTS)
    assert routed.front.metrics.drain()["engines/router_restarts"] == {"": 1}
    assert [client.alive for client in routed.clients] == [True, True]


@pytest.mark.long
def test_a_run_generates_through_the_router_and_leaves_none_behind(tmp_path: Path, started):
    for server in started:
        server.end()  # there are never more than two servers
    options = {"name": "run", "runs-dir": tmp_path, "steps": 3, "eval-interval": 3, "num-engines": 2}
    launch("sglang_cpu.sh", **{**options, "engine.router": "sglang-router"})
    run = tmp_path / "run"
    summary = json.loads((run / "summary.json").read_text())
    assert summary["publications"] == 3 and set(summary["books"]["dropped"]) <= {"no_variance"}
    assert (run / "logs" / "router.txt").exists()
    for log in (run / "logs" / "engine-0.txt", run / "logs" / "engine-1.txt"):
        assert log.read_text(errors="replace").count("POST /generate ") > 10
    assert holders(run / "logs" / "router.txt") == []


def holders(file: Path) -> list[str]:
    """Process ids of whoever has a file open, as a router has its log."""
    found = []
    for handle in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if handle.readlink() == file:
                found.append(handle.parts[2])
    return found

"""One of two servers dies or hangs, while it generates and while it is updated: nothing is lost, and the other goes on."""

from __future__ import annotations

import asyncio
import signal
import time
import urllib.error
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from asyncrl.rollout.engine import GenerateRequest
from asyncrl.samples import SamplingParams
from models import check_answer, logprobs
from publishing import Source

PROMPTS = [[3 + index, 20, 30, 40, 50, 11] for index in range(6)]
COUNT = 600  # takes some seconds: whatever is done to a server meets requests in their middle
UPDATE_SECONDS = 60.0
RECOVERY_SECONDS = 600.0  # on a busy machine; some on a quiet one


def ask(prompt: list[int], count: int) -> GenerateRequest:
    return GenerateRequest(np.array(prompt, dtype=np.int32), SamplingParams(count, temperature=0.0), prompt[0])


async def start(world, count: int = COUNT) -> list[asyncio.Task]:
    """Requests on both servers."""
    flying = [asyncio.create_task(world.pool.generate(ask(prompt, count))) for prompt in PROMPTS]
    async with asyncio.timeout(60):
        while not all([await asyncio.to_thread(busy, server) for server in world.servers]):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return flying


def busy(server) -> bool:
    return any(load["num_running_reqs"] for load in server.call("/v1/loads")["loads"])


@pytest.mark.long
async def test_a_server_that_hangs_gets_no_requests_until_it_answers_again(world, models, reference):
    world.pool._health_failures = 1
    await asyncio.to_thread(world.servers[0].send, signal.SIGSTOP)
    try:
        await asyncio.wait_for(world.pool.look(), 60)
        assert [client.alive for client in world.clients] == [False, True]
        answers = await asyncio.gather(*(world.pool.generate(ask(prompt, 16)) for prompt in PROMPTS))
        for prompt, answer in zip(PROMPTS, answers, strict=True):
            check_answer(answer, logprobs(reference(models.a), prompt, answer.token_ids.tolist()))
        assert world.clients[0].in_flight == 0
    finally:
        await asyncio.to_thread(world.servers[0].send, signal.SIGCONT)
    async with asyncio.timeout(60):
        while not world.clients[0].alive:
            await world.pool.look()


@pytest.mark.parametrize("method", ["disk", "broadcast"])
@pytest.mark.long
async def test_a_server_that_hangs_in_an_update_is_given_up_and_the_other_is_updated(world, models, reference, method):
    """The side of the collective that waits for it does not hang either."""
    b = reference(models.b)
    world.weights._timeout = 15.0
    for client in world.clients:
        client.control_timeout = client.update_timeout = 15.0
    await asyncio.to_thread(world.servers[0].send, signal.SIGSTOP)
    try:
        publisher = world.publisher(method, "retract", Source(b), timeout=15.0)
        assert await asyncio.wait_for(publisher.publish(1.0), 120) == 1
    finally:
        await asyncio.to_thread(world.servers[0].send, signal.SIGCONT)
    await publisher.close()
    assert [client.alive for client in world.clients] == [False, True]
    answer = await world.pool.generate(ask(PROMPTS[0], 16))
    assert answer.spans == ((1, 16),)
    check_answer(answer, logprobs(b, PROMPTS[0], answer.token_ids.tolist()))
    for _ in range(3):
        await world.pool.look()
    assert not world.clients[0].alive, "it serves old weights"
    world.weights._timeout = UPDATE_SECONDS
    for client in world.clients:
        client.control_timeout = client.update_timeout = UPDATE_SECONDS
    assert await world.publisher("disk", "retract", Source(reference(models.demo))).publish(1.0) == 1
    assert [client.alive for client in world.clients] == [True, True]


@pytest.mark.parametrize("method", ["disk", "broadcast"])
async def test_a_server_killed_in_an_update_loses_its_requests_to_the_other(world, models, reference, method):
    """kill -9 while bytes are on their way: the update goes on without it, and a broadcast is made again."""
    b = reference(models.b)
    publisher = world.publisher(method, "retract", Source(b), timeout=30.0)
    flying = await start(world)
    call = {"disk": "load_from_disk", "broadcast": "receive_bucket"}[method]
    update = getattr(world.clients[0], call)

    async def killed(*arguments, **more) -> None:
        if world.servers[0].process.poll() is None:
            await asyncio.to_thread(world.servers[0].kill)
        await update(*arguments, **more)

    setattr(world.clients[0], call, killed)
    assert await asyncio.wait_for(publisher.publish(1.0), RECOVERY_SECONDS) == 1
    await publisher.close()
    answers = await asyncio.wait_for(asyncio.gather(*flying), RECOVERY_SECONDS)
    assert [(answer.finish_reason, len(answer.token_ids)) for answer in answers] == [("length", COUNT)] * len(PROMPTS)
    assert [client.alive for client in world.clients] == [False, True]


@pytest.mark.long
async def test_a_server_that_hangs_while_it_generates_loses_its_requests_to_the_other_once_it_is_ended(world, models, reference):
    """As the supervisor ends it, after `engine_hang_timeout`."""
    world.pool._health_failures = 1
    flying = await start(world)
    await asyncio.to_thread(world.servers[0].send, signal.SIGSTOP)
    await asyncio.wait_for(world.pool.look(), 60)
    assert [client.alive for client in world.clients] == [False, True]
    assert world.clients[0].in_flight, "what hangs with it waits for its end"
    await asyncio.to_thread(world.servers[0].kill)
    answers = await asyncio.wait_for(asyncio.gather(*flying), RECOVERY_SECONDS)
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        assert (answer.finish_reason, len(answer.token_ids), answer.spans) == ("length", COUNT, ((0, COUNT),))
        check_answer(answer, logprobs(reference(models.a), prompt, answer.token_ids.tolist()))


async def test_a_server_killed_while_it_generates_loses_its_requests_to_the_other(world, models, reference):
    flying = await start(world)
    await asyncio.to_thread(world.servers[0].kill)
    answers = await asyncio.wait_for(asyncio.gather(*flying), RECOVERY_SECONDS)
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        assert (answer.finish_reason, len(answer.token_ids)) == ("length", COUNT)
        check_answer(answer, logprobs(reference(models.a), prompt, answer.token_ids.tolist()))
    assert [client.alive for client in world.clients] == [False, True]


def test_the_end_of_the_owner_ends_the_whole_process_tree(pair, models):
    """Comes last: it ends the server that was not killed, in the middle of a request."""
    server = pair[1]
    server.reset(models.a)
    body = {"input_ids": PROMPTS[0], "sampling_params": {"max_new_tokens": 3000}}
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(server.call, "/generate", body)
        deadline = time.monotonic() + 60
        while not busy(server) and time.monotonic() < deadline:
            time.sleep(0.02)
        tree = server.processes()
        assert len(tree) >= 3, "scheduler and detokenizer run beside the server"
        server.end()
        assert answer.exception(60) is not None
    assert [pid for pid in tree if is_running(pid)] == []
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        server.call("/model_info")


def is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

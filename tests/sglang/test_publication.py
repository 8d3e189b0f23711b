"""New weights in the middle of requests, on real servers: nothing is aborted, and every token is under the version it is said to be."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from asyncrl.rollout.engine import GenerateRequest
from asyncrl.samples import SamplingParams
from models import check_answer, logprobs, logprobs_on_an_old_cache
from publishing import WAYS, Source

PROMPTS = [[3 + index, 20, 30, 40, 50, 11] for index in range(6)]
COUNT = 400
MOST = 3900
TAIL = 24


def ask(prompt: list[int], count: int) -> GenerateRequest:
    return GenerateRequest(np.array(prompt, dtype=np.int32), SamplingParams(count, temperature=0.0), prompt[0])


@pytest.mark.parametrize(("method", "mode"), WAYS)
async def test_requests_in_flight_go_on_under_the_new_weights(world, models, reference, method, mode):
    """Field reports 1 and 23. The requests would take far longer than a publication; they are given up some tokens after it, which a
    server counts as aborts, as it would any by the publication."""
    a, b = reference(models.a), reference(models.b)
    publisher = world.publisher(method, mode, Source(b))
    flying = [asyncio.create_task(world.pool.generate(ask(prompt, MOST))) for prompt in PROMPTS]
    await asyncio.gather(*(has_run(server, len(PROMPTS) // 2) for server in world.servers))
    before = aborts(world)
    assert await publisher.publish(1.0) == 1
    assert not any(each.done() for each in flying), "the publication ended a request"
    assert aborts(world) == before
    after = await asyncio.gather(*(world.pool.generate(ask(prompt, TAIL)) for prompt in PROMPTS))
    for client in world.clients:
        await client.abort_all()
    assert aborts(world) == [count + 1 for count in before], "the servers count nothing"

    for prompt, answer in zip(PROMPTS, await asyncio.gather(*flying), strict=True):
        output = answer.token_ids.tolist()
        assert answer.finish_reason == "abort"
        assert [version for version, _ in answer.spans] == [0, 1]
        cut = answer.spans[0][1]
        head, tail = prompt + output[:cut], output[cut:]
        check_answer(answer, logprobs(a, prompt, output[:cut]))
        tail_rows = logprobs(b, head, tail) if mode == "retract" else logprobs_on_an_old_cache(a, b, head, tail)
        check_answer(answer, tail_rows, begin=cut)

    for prompt, answer in zip(PROMPTS, after, strict=True):
        assert answer.spans == ((1, TAIL),)
        check_answer(answer, logprobs(b, prompt, answer.token_ids.tolist()))  # no prefix of the old weights was used
    assert [await client.served_version() for client in world.clients] == [1, 1]


@pytest.mark.parametrize("packed", [True, False])
async def test_buckets_arrive_in_either_form(world, models, reference, packed):
    """A server says that it takes packed ones; were it to say no, each tensor would come by itself."""
    source = Source(reference(models.b))
    assert [client.takes_packed for client in world.clients] == [True, True]
    for client in world.clients:
        client.takes_packed = packed
    publisher = world.publisher("broadcast", "retract", source)
    assert await publisher.publish(1.0) == 1
    assert source.group.packed == packed and len((await source.manifest()).buckets) > 1
    by_broadcast = [await client.digest() for client in world.clients]
    for client, server in zip(world.clients, world.servers, strict=True):
        answer = await client.generate(ask(PROMPTS[0], TAIL))
        check_answer(answer, logprobs(source.model, PROMPTS[0], answer.token_ids.tolist()))
        server.call("/update_weights_from_disk", {"model_path": str(models.b)})
    assert by_broadcast == [await client.digest() for client in world.clients]
    await publisher.close()


async def test_no_prefix_of_the_old_weights_is_used_though_the_server_is_never_idle(world, models, reference):
    """Frozen in place, a server can't flush its cache; requests of the new version must not find the old one's prefixes."""
    a, b = reference(models.a), reference(models.b)
    shared = list(range(3, 43))
    busy = asyncio.create_task(world.clients[0].generate(ask([60, 61], MOST)))
    before = await world.clients[0].generate(ask(shared, TAIL))
    check_answer(before, logprobs(a, shared, before.token_ids.tolist()))
    await world.publisher("disk", "in_place", Source(b)).publish(1.0)
    for answer in await asyncio.gather(*(world.clients[0].generate(ask(shared, TAIL)) for _ in range(2))):
        check_answer(answer, logprobs(b, shared, answer.token_ids.tolist()))
    assert not busy.done()
    await world.clients[0].abort_all()
    await busy


async def test_a_group_shares_its_prefix(world):
    """The server computes a group's prompt once: later samples find it in its cache."""
    prompt = list(range(3, 53))
    await world.pool.generate(ask(prompt, 4))
    calls = [{"input_ids": prompt, "sampling_params": {"max_new_tokens": 4}} for _ in range(3)]
    first = [server.call("/generate", calls[0])["meta_info"]["cached_tokens"] for server in world.servers]
    assert sorted(first) == [0, len(prompt) - 1]


async def test_an_update_that_changes_nothing_is_refused(world, models, reference):
    """Field report 22."""
    from asyncrl.errors import PublicationError

    source = Source(reference(models.a))
    publisher = world.publisher("disk", "retract", source)
    source.digest = "something else"  # it says that the weights are new
    with pytest.raises(PublicationError, match="its weights did not change"):
        await publisher.publish(1.0)


async def test_publishing_again_and_again_keeps_versions_in_order(world, models, reference):
    a, b = reference(models.a), reference(models.b)
    source = Source(b)
    publisher = world.publisher("broadcast", "retract", source)
    flying = [asyncio.create_task(world.pool.generate(ask(prompt, COUNT))) for prompt in PROMPTS]
    await asyncio.gather(*(has_run(server, 1) for server in world.servers))
    for version, model in ((1, b), (2, a), (3, b)):
        source.__dict__.update({k: v for k, v in Source(model).__dict__.items() if k != "_sender"})
        assert await publisher.publish(1.0) == version
    await publisher.close()
    for answer in await asyncio.gather(*flying):
        versions = [version for version, _ in answer.spans]
        assert answer.finish_reason == "length" and versions == sorted(set(versions)) and sum(n for _, n in answer.spans) == COUNT


def aborts(world) -> list[int]:
    """How many aborts each server has had, by its own count."""
    return [server.count("num_aborted_requests_total") for server in world.servers]


async def has_run(server, count: int) -> None:
    """Wait until so many requests run and have generated something."""
    async with asyncio.timeout(60):
        while True:
            loads = (await asyncio.to_thread(server.call, "/v1/loads"))["loads"]
            if sum(load["num_running_reqs"] for load in loads) >= count:
                return
            await asyncio.sleep(0.02)

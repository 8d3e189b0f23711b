"""What one call to one engine comes to, over real HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import numpy as np
import pytest
from asyncrl.errors import EngineError, EngineFault, RequestFailed
from asyncrl.rollout.client import EngineClient
from asyncrl.rollout.connection import make_session
from asyncrl.rollout.engine import GenerateRequest
from asyncrl.samples import SamplingParams
from http_engine import HttpEngine


@pytest.fixture
async def server() -> AsyncIterator[HttpEngine]:
    engine = await HttpEngine().start()
    yield engine
    await engine.stop()


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with make_session() as session:
        yield session


def client_of(server: HttpEngine, session: aiohttp.ClientSession, **options: Any) -> EngineClient:
    return EngineClient("engine-0", server.url, session, **{"vocab_size": 64, "request_timeout": 30.0, **options})


@pytest.fixture
def client(server: HttpEngine, session: aiohttp.ClientSession) -> EngineClient:
    return client_of(server, session)


def request(*ids: int, new: int = 5, **params: Any) -> GenerateRequest:
    return GenerateRequest(np.array(ids, dtype=np.int32), SamplingParams(new, **params), affinity=0)


async def test_an_answer_becomes_a_completion_in_compact_arrays(server: HttpEngine, client: EngineClient) -> None:
    completion = await client.generate(request(1, 2, 3, temperature=0.7, top_k=4, stop_token_ids=(9,)))
    assert completion.token_ids.dtype == np.int32 and completion.logprobs.dtype == np.float32
    assert completion.token_ids.tolist() == [3, 4, 5, 6, 7]
    assert completion.logprobs.tolist() == [-0.5] * 5
    assert (completion.spans, completion.finish_reason, completion.admitted) == (((0, 5),), "length", 0)
    (sent,) = server.called("/generate")
    assert sent["input_ids"] == [1, 2, 3] and sent["return_logprob"] is True
    assert sent["sampling_params"] == {
        "max_new_tokens": 5,
        "temperature": 0.7,
        "top_p": 1.0,
        "top_k": 4,
        "stop_token_ids": [9],
    }


async def test_a_request_can_go_on_past_the_model_s_own_end(server: HttpEngine, client: EngineClient) -> None:
    await client.generate(request(1, ignore_eos=True))
    (sent,) = server.called("/generate")
    assert sent["sampling_params"]["ignore_eos"] is True


async def test_two_versions_in_one_answer_are_two_spans(server: HttpEngine, client: EngineClient) -> None:
    """Field report 1."""
    client.version, server.label, server.hold_after = 3, "3", 2
    asked = asyncio.create_task(client.generate(request(1)))
    await server.until(lambda: list(server.generated.values()) == [2])
    client.version, server.label = 7, "7"
    await server.release()
    completion = await asked
    assert completion.spans == ((3, 2), (7, 3)) and completion.admitted == 3


async def test_a_label_on_the_finished_answer_is_not_believed(server: HttpEngine, client: EngineClient) -> None:
    """Field report 1: the server says 7 when it is finished; the request began under 3."""
    server.spans, client.version, server.label, server.hold_after = False, 3, "3", 2
    asked = asyncio.create_task(client.generate(request(1)))
    await server.until(lambda: list(server.generated.values()) == [2])
    client.version, server.label = 7, "7"
    await server.release()
    assert (await asked).spans == ((3, 5),)


async def test_a_label_older_than_known_is_believed(server: HttpEngine, client: EngineClient) -> None:
    server.spans, client.version, server.label = False, 3, "default"  # it was restarted with the initial weights
    assert (await client.generate(request(1))).spans == ((0, 5),)


@pytest.mark.parametrize("ids", [(64,), (1, -1), (2**31 - 1,), ()])
async def test_ids_that_would_kill_a_server_are_never_sent(
    server: HttpEngine, client: EngineClient, ids: tuple[int, ...]
) -> None:
    with pytest.raises(RequestFailed, match=r"outside the vocabulary of 64|empty"):
        await client.generate(request(*ids))
    assert not server.requests and client.in_flight == 0


async def test_a_request_without_an_answer_ends_at_its_deadline_and_is_aborted(
    server: HttpEngine, session: aiohttp.ClientSession
) -> None:
    """Field report 11."""
    client = client_of(server, session, request_timeout=0.2)
    server.fail("/generate", "hang")
    with pytest.raises(EngineFault, match=r"engine-0: a request got no answer within 0\.2 s"):
        await client.generate(request(1))
    await client.close()
    assert server.called("/abort_request") == [{"rid": server.called("/generate")[0]["rid"]}]
    assert client.in_flight == 0 and client.busy_seconds > 0


async def test_a_cancelled_request_is_aborted_at_the_server(server: HttpEngine, client: EngineClient) -> None:
    server.hold_after = 2
    asked = asyncio.create_task(client.generate(request(1)))
    await server.until(lambda: list(server.generated.values()) == [2])
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    await client.close()
    assert server.called("/abort_request") == [{"rid": server.called("/generate")[0]["rid"]}]


async def test_an_aborted_request_comes_back_partial(server: HttpEngine, client: EngineClient) -> None:
    server.hold_after = 2
    asked = asyncio.create_task(client.generate(request(1)))
    await server.until(lambda: list(server.generated.values()) == [2])
    await client.abort_all()
    completion = await asked
    assert completion.finish_reason == "abort" and len(completion.token_ids) == len(completion.logprobs) == 2
    assert completion.spans == ((0, 2),)


@pytest.mark.parametrize("fault", ["500", "close", "close_mid_body", "garbage", "list", "short", "long", "nan"])
async def test_what_another_try_may_cure_is_a_fault_naming_the_engine(
    server: HttpEngine, client: EngineClient, fault: str
) -> None:
    """Field reports 12 and 13: no answer, half an answer, or one that does not add up."""
    server.fail("/generate", fault)
    with pytest.raises(EngineFault, match="^engine-0: ") as raised:
        await client.generate(request(1))
    assert not raised.value.unreachable
    assert len((await client.generate(request(1))).token_ids) == 5


async def test_a_refused_request_is_not_worth_another_try(server: HttpEngine, client: EngineClient) -> None:
    server.fail("/generate", "400")
    with pytest.raises(RequestFailed, match="refused with 400: .*scripted 400"):
        await client.generate(request(1))


async def test_nothing_listening_is_told_apart(server: HttpEngine, client: EngineClient) -> None:
    await server.stop()
    with pytest.raises(EngineFault) as raised:
        await client.generate(request(1))
    assert raised.value.unreachable
    assert not await client.healthy() and not await client.reachable()


async def test_control_calls_have_deadlines_of_their_own(server: HttpEngine, session: aiohttp.ClientSession) -> None:
    client = client_of(server, session, control_timeout=0.2)
    server.fail("/pause_generation", "hang")
    with pytest.raises(EngineFault, match=r"engine-0: /pause_generation got no answer within 0\.2 s"):
        await client.pause("retract")


async def test_a_refused_control_call_repeats_what_the_server_said(
    server: HttpEngine, client: EngineClient, tmp_path: Any
) -> None:
    with pytest.raises(EngineError, match=r"update_weights_from_disk was refused with 400: .*no such model") as raised:
        await client.load_from_disk(tmp_path / "nowhere", 1, flush_cache=True)
    assert not isinstance(raised.value, EngineFault)


async def test_health_is_told_from_weights_and_never_asks_the_endpoint_that_blocks(
    server: HttpEngine, client: EngineClient
) -> None:
    assert await client.healthy()
    await client.pause("retract")
    assert await client.healthy()
    await client.resume()
    client.version = 4  # the server still serves what it started with: it was restarted
    assert not await client.healthy()
    server.label = "4"
    assert await client.healthy()
    client.unfit = True
    assert not await client.healthy()
    assert not server.called("/health")


async def test_relabelling_aborts_nothing(server: HttpEngine, client: EngineClient) -> None:
    server.hold_after = 2
    asked = asyncio.create_task(client.generate(request(1)))
    await server.until(lambda: list(server.generated.values()) == [2])
    await client.set_version_label(1)
    await server.release()
    assert (await asked).finish_reason == "length"


async def test_busy_seconds_count_overlapping_requests_once(server: HttpEngine, client: EngineClient) -> None:
    clock = asyncio.get_running_loop().time
    server.hold_after = 1
    started = clock()
    asked = [asyncio.create_task(client.generate(request(1))) for _ in range(4)]
    await server.until(lambda: len(server.generated) == 4)
    assert client.in_flight == 4
    await server.release()
    await asyncio.gather(*asked)
    assert 0 < client.busy_seconds <= clock() - started
    assert client.in_flight == 0

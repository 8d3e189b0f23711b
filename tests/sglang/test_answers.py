"""Token in, token out: what a real server answers is what the trainer's model says, and nothing that would hurt it is sent."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from asyncrl.errors import RequestFailed
from asyncrl.rollout.engine import GenerateRequest
from asyncrl.samples import Completion, SamplingParams
from models import check_answer, logprobs

VOCABULARY = 64
RNG = np.random.default_rng(0)
PROMPTS = [RNG.integers(3, 60, int(length)).tolist() for length in RNG.integers(2, 40, 32)]


def ask(prompt: list[int], count: int, *, affinity: int = 0, **sampling) -> GenerateRequest:
    return GenerateRequest(np.array(prompt, dtype=np.int32), SamplingParams(count, **sampling), affinity)


async def generate(world, prompts: list[list[int]], count: int, **sampling) -> list[Completion]:
    return await asyncio.gather(*(world.pool.generate(ask(p, count, affinity=i, **sampling)) for i, p in enumerate(prompts)))


@pytest.mark.parametrize("which", ["demo", "a"])
async def test_greedy_tokens_and_their_log_probabilities_are_the_trainers_models(world, models, reference, which):
    folder = getattr(models, which)
    for server in world.servers:
        server.call("/update_weights_from_disk", {"model_path": str(folder), "weight_version": "0", "flush_cache": True})
    model = reference(folder)
    answers = await generate(world, PROMPTS, 24, temperature=0.0)
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        check_answer(answer, logprobs(model, prompt, answer.token_ids.tolist()))
        assert (answer.spans, answer.finish_reason) == (((0, 24),), "length")


@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_sampled_tokens_come_with_the_log_probabilities_that_training_uses(world, models, reference, temperature):
    """Those of the tempered distribution, as the trainer computes them."""
    model = reference(models.a)
    answers = await generate(world, [PROMPTS[0]] * 8, 32, temperature=temperature)
    assert len({tuple(answer.token_ids.tolist()) for answer in answers}) > 1
    for answer in answers:
        tokens = answer.token_ids.tolist()
        want = logprobs(model, PROMPTS[0], tokens, temperature)[range(32), tokens].numpy()
        assert np.abs(answer.logprobs - want).max() < 1e-4


async def test_ids_outside_the_vocabulary_never_reach_the_server(world):
    """One would kill its scheduler."""
    for bad in (64, 1_000_000, -1):
        with pytest.raises(RequestFailed, match=f"token id {bad} is outside the vocabulary of 64"):
            await world.clients[0].generate(ask([3, bad, 5], 4))
    assert (await world.clients[0].generate(ask([3, 4], 4))).finish_reason == "length"


async def test_a_request_that_the_server_refuses_fails_alone_with_its_words(world):
    with pytest.raises(RequestFailed, match="longer than|context length|exceeds"):
        await world.pool.generate(ask([5] * 5000, 4))
    with pytest.raises(RequestFailed, match="a prompt is empty"):
        await world.pool.generate(ask([], 4))
    assert (await world.pool.generate(ask([3, 4], 4))).finish_reason == "length"


async def test_stop_tokens_length_and_abort_become_the_reason(world, models, reference):
    prompt, stops = PROMPTS[1], tuple(range(0, VOCABULARY, 2))
    stopped = await world.clients[0].generate(ask(prompt, 200, stop_token_ids=stops))
    assert stopped.finish_reason == "stop"
    assert [token in stops for token in stopped.token_ids.tolist()] == [False] * (len(stopped.token_ids) - 1) + [True]
    cut = await world.clients[0].generate(ask(prompt, 7))
    assert (cut.finish_reason, len(cut.token_ids)) == ("length", 7)

    running = asyncio.create_task(world.clients[0].generate(ask(prompt, 3000, temperature=0.0)))
    await until_running(world.servers[0], 1)
    await world.clients[0].abort_all()
    aborted = await running
    assert aborted.finish_reason == "abort" and 0 < len(aborted.token_ids) < 3000
    check_answer(aborted, logprobs(reference(models.a), prompt, aborted.token_ids.tolist()))


async def test_a_request_that_is_given_up_ends_at_the_server_too(world):
    running = asyncio.create_task(world.clients[0].generate(ask(PROMPTS[2], 3000)))
    await until_running(world.servers[0], 1)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await world.clients[0].close()
    await until_running(world.servers[0], 0)


async def until_running(server, count: int) -> None:
    """Wait until so many requests run."""
    async with asyncio.timeout(60):
        while await asyncio.to_thread(running, server) != count:  # noqa: ASYNC110 - only the server knows
            await asyncio.sleep(0.05)


def running(server) -> int:
    return sum(load["num_running_reqs"] for load in server.call("/v1/loads")["loads"])

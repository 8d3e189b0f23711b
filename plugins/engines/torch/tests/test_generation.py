"""What a server generates, against plain Hugging Face under the same weights."""

from __future__ import annotations

import asyncio
import math
from itertools import pairwise
from typing import Any

import pytest
import torch

GREEDY = {"temperature": 0, "ignore_eos": True}
PROMPTS = [[1, *range(3 + n, 3 + n + length)] for n, length in enumerate([1, 7, 3, 18, 2, 30, 12, 5, 9, 23, 4, 16])]


@pytest.fixture(scope="module")
def server(start_server):
    """Four rows, so that twelve requests must be refilled into them."""
    return start_server(max_running=4)


async def test_greedy_tokens_of_mixed_lengths_equal_hugging_face_while_slots_are_refilled(server, reference_a, check_greedy):
    lengths = [40 - 3 * place for place in range(len(PROMPTS))]
    bodies = [
        {"input_ids": prompt, "sampling_params": GREEDY | {"max_new_tokens": length}}
        for prompt, length in zip(PROMPTS, lengths, strict=True)
    ]
    replies = await server.generate_all(bodies)
    for prompt, length, reply in zip(PROMPTS, lengths, replies, strict=True):
        check_greedy(reference_a, prompt, reply["output_ids"])
        assert len(reply["output_ids"]) == length
        assert reply["meta_info"]["finish_reason"] == {"type": "length", "length": length}
        assert reply["meta_info"]["prompt_tokens"] == len(prompt)
        assert reply["meta_info"]["completion_tokens"] == length
        assert reply["meta_info"]["weight_version"] == "0"
        assert reply["meta_info"]["weight_versions"] == [{"version": "0", "start": 0, "end": length}]


@pytest.mark.parametrize("temperature", [0, 0.7, 1.0, 1.3])
async def test_logprobs_agree_with_a_forward_pass(server, reference_a, forward_logprobs, temperature):
    params = {"temperature": temperature, "max_new_tokens": 24, "ignore_eos": True}
    replies = await server.generate_all(
        [{"input_ids": prompt, "sampling_params": params, "return_logprob": True} for prompt in PROMPTS]
    )
    for prompt, reply in zip(PROMPTS, replies, strict=True):
        output, told = reply["output_ids"], reply["meta_info"]["output_token_logprobs"]
        want = forward_logprobs(reference_a, prompt, output, temperature or 1.0)  # greedy is told at temperature 1
        assert [token for _, token, _ in told] == output
        for place, (logprob, token, _) in enumerate(told):
            assert abs(logprob - float(want[place, token])) < 1e-4


def filtered(logprobs: list[float], top_p: float, top_k: int) -> dict[int, float]:
    """The distribution by its definition: tokens in order of probability, as many as top-k allows and until top-p is reached."""
    order = sorted(range(len(logprobs)), key=lambda token: -logprobs[token])
    kept: dict[int, float] = {}
    reached = 0.0
    for rank, token in enumerate(order):
        if reached > top_p or (top_k > 0 and rank >= top_k):
            break
        kept[token] = math.exp(logprobs[token])
        reached += kept[token]
    total = sum(kept.values())
    return {token: math.log(share / total) for token, share in kept.items()}


@pytest.mark.parametrize(("top_p", "top_k"), [(0.8, 10), (0.6, -1), (1.0, 5)])
async def test_logprobs_are_those_of_the_filtered_distribution(server, reference_a, forward_logprobs, top_p, top_k):
    params = {"temperature": 0.7, "top_p": top_p, "top_k": top_k, "max_new_tokens": 24, "ignore_eos": True}
    bodies = [{"input_ids": prompt, "sampling_params": params, "return_logprob": True} for prompt in PROMPTS[:8]]
    bodies[1]["sampling_params"] = {"temperature": 1.0, "max_new_tokens": 24, "ignore_eos": True}  # an unfiltered neighbour
    replies = await server.generate_all(bodies)
    for body, reply in zip(bodies, replies, strict=True):
        own: Any = body["sampling_params"]
        want = forward_logprobs(reference_a, body["input_ids"], reply["output_ids"], own["temperature"])
        for place, (logprob, token, _) in enumerate(reply["meta_info"]["output_token_logprobs"]):
            allowed = filtered(want[place].double().tolist(), own.get("top_p", 1.0), own.get("top_k", -1))
            assert token in allowed
            assert abs(logprob - allowed[token]) < 1e-4


async def test_samples_follow_the_distribution(server, reference_a, forward_logprobs):
    prompt = PROMPTS[2]
    body = {"input_ids": prompt, "sampling_params": {"max_new_tokens": 1, "ignore_eos": True}}
    count = 1500
    replies = await server.generate_all([body] * count)
    seen = torch.zeros(64)
    for reply in replies:
        seen[reply["output_ids"][0]] += 1
    probs = forward_logprobs(reference_a, prompt, [0])[0].exp()
    # total variation of n draws from k outcomes is below sqrt(k / n) but for odds of less than e**-32 (McDiarmid)
    assert float((seen / count - probs).abs().sum()) / 2 < math.sqrt(64 / count)


async def test_a_groups_prompt_is_computed_once(server):
    prompt = [1, 60, 61, 62, 63, 60, 61, 62, 63, 9]
    body = {"input_ids": prompt, "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}}
    replies = await server.generate_all([body] * 8)
    cached = sorted(reply["meta_info"]["cached_tokens"] for reply in replies)
    assert cached == [0] + [len(prompt) - 1] * 7
    assert len({tuple(reply["output_ids"]) for reply in replies}) > 1


def test_a_longer_prompt_reuses_the_head_it_shares(server, reference_a, check_greedy):
    head = [1, *[3 + (place * 11) % 50 for place in range(40)]]
    server.generate(head, max_new_tokens=1)
    longer = [*head, 7, 8, 9]
    reply = server.generate(longer, **GREEDY, max_new_tokens=12)
    assert reply["meta_info"]["cached_tokens"] == len(head) - 1
    check_greedy(reference_a, longer, reply["output_ids"])


def test_generation_ends_at_a_stop_token_and_includes_it(server):
    stops = list(range(0, 64, 2))  # the model's own end among them
    reply = server.generate(PROMPTS[1], temperature=1, max_new_tokens=200, stop_token_ids=stops)
    *before, last = reply["output_ids"]
    assert last in stops and not set(before) & set(stops)
    assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": last}


def test_output_is_cut_where_the_context_ends(server):
    reply = server.generate([1] + [5] * 4089, temperature=1, max_new_tokens=50, ignore_eos=True)
    assert reply["meta_info"]["finish_reason"] == {"type": "length", "length": 6}


async def test_a_stream_is_cumulative_and_ends_with_the_spans(server, reference_a, check_greedy):
    body = {"input_ids": PROMPTS[0], "sampling_params": GREEDY | {"max_new_tokens": 30}, "return_logprob": True}
    async with server.stream(body) as chunks:
        seen = [chunk async for chunk in chunks]
    outputs = [chunk["output_ids"] for chunk in seen]
    for shorter, longer in pairwise(outputs):
        assert longer[: len(shorter)] == shorter
    check_greedy(reference_a, PROMPTS[0], outputs[-1])
    assert all(chunk["meta_info"]["finish_reason"] is None for chunk in seen[:-1])
    assert seen[-1]["meta_info"]["weight_versions"] == [{"version": "0", "start": 0, "end": 30}]
    assert len(seen[-1]["meta_info"]["output_token_logprobs"]) == 30


async def test_an_aborted_request_answers_with_what_it_has(server, reference_a, check_greedy):
    body = {"input_ids": PROMPTS[3], "rid": "mine", "sampling_params": GREEDY | {"max_new_tokens": 4000}}
    async with server.stream(body) as chunks:
        async for chunk in chunks:
            if len(chunk["output_ids"]) >= 5:
                await asyncio.to_thread(server.ok, "/abort_request", {"rid": "mine"})
                break
        last = [chunk async for chunk in chunks][-1]
    assert last["meta_info"]["finish_reason"]["type"] == "abort"
    assert 5 <= len(last["output_ids"]) < 4000
    check_greedy(reference_a, PROMPTS[3], last["output_ids"])
    server.ok("/abort_request", {"rid": "unknown"})


async def test_abort_all_ends_running_and_waiting_requests(server):
    bodies = [{"input_ids": prompt, "sampling_params": GREEDY | {"max_new_tokens": 4000}} for prompt in PROMPTS]
    running = asyncio.create_task(server.generate_all(bodies))
    load = await server.until_load(lambda load: load["num_running_reqs"] + load["num_waiting_reqs"] == len(bodies))
    assert load["num_running_reqs"] <= 4
    await asyncio.to_thread(server.ok, "/abort_request", {"abort_all": True})
    assert {reply["meta_info"]["finish_reason"]["type"] for reply in await running} == {"abort"}


async def test_a_request_whose_client_leaves_is_ended(server):
    async with server.stream({"input_ids": [1, 4], "sampling_params": GREEDY | {"max_new_tokens": 4000}}) as chunks:
        await anext(chunks)
    await server.until_load(lambda load: load["num_running_reqs"] + load["num_waiting_reqs"] == 0)


BAD = {
    "outside the vocabulary of 64": {"input_ids": [1, 64]},
    "token id -1 is outside": {"input_ids": [1, -1]},
    "prompt is empty": {"input_ids": []},
    "input_ids is missing": {"text": "hello"},
    "one list of integers": {"input_ids": [[1, 2], [3]]},
    "leave no room": {"input_ids": [1] * 4096},
    "top_p must be in": {"input_ids": [1], "sampling_params": {"top_p": 0}},
    "top_k must be": {"input_ids": [1], "sampling_params": {"top_k": 0}},
    "temperature must not be negative": {"input_ids": [1], "sampling_params": {"temperature": -1}},
    "max_new_tokens must be at least 1": {"input_ids": [1], "sampling_params": {"max_new_tokens": 0}},
    "max_new_tokens must be an integer": {"input_ids": [1], "sampling_params": {"max_new_tokens": "many"}},
    "regex='a' is not offered": {"input_ids": [1], "sampling_params": {"regex": "a"}},
    "frequency_penalty=0.5 is not offered": {"input_ids": [1], "sampling_params": {"frequency_penalty": 0.5}},
    "must be a JSON object": [1, 2],
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_a_400_with_its_reason(server, message):
    status, answer = server.call("/generate", BAD[message])
    assert status == 400
    assert message in answer["message"]
    assert server.call("/health")[0] == 200


def test_broken_json_and_unknown_paths_are_refused(server):
    assert server.call("/generate", raw=b"{")[0] == 400
    assert server.call("/no_such_thing", {})[0] == 404
    assert server.generate([1, 5], max_new_tokens=1)["output_ids"]

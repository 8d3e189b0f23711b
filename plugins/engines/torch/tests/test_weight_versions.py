"""New weights while requests are in flight: which version made which token, and no cache that outlives its weights."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import greedy_tokens
import pytest
import torch
from asyncrl.training.digest import weights_digest
from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM

GREEDY = {"temperature": 0, "ignore_eos": True}
PROMPT = [1, 20, 30, 40, 50]
TAIL = 40


@pytest.fixture(scope="module")
def served(start_server):
    return start_server(max_running=8)


@pytest.fixture
def server(served, model_a: Path):
    """The server with model a as version 0, running, its caches empty."""
    served.ok("/update_weights_from_disk", {"model_path": str(model_a), "weight_version": "0"})
    yield served
    served.ok("/continue_generation", {})
    served.ok("/abort_request", {"abort_all": True})


async def across_an_update(server, model_b: Path, mode: str) -> dict[str, Any]:
    """Update to version 7 in the middle of a request; return its final answer, cut short some tokens after the update."""
    body = {"input_ids": PROMPT, "rid": "r", "return_logprob": True, "sampling_params": GREEDY | {"max_new_tokens": 4000}}
    update = {"model_path": str(model_b), "weight_version": "7", "flush_cache": False, "abort_all_requests": False}
    async with server.stream(body) as chunks:
        async for chunk in chunks:
            if len(chunk["output_ids"]) >= 10:
                break
        if mode != "none":
            await asyncio.to_thread(server.ok, "/pause_generation", {"mode": mode})
        await asyncio.to_thread(server.ok, "/update_weights_from_disk", update)
        if mode != "none":
            await asyncio.to_thread(server.ok, "/continue_generation", {})
        wanted = None
        async for chunk in chunks:
            if wanted is None and chunk["meta_info"]["weight_version"] == "7":
                wanted = len(chunk["output_ids"]) + TAIL
            if wanted is not None and len(chunk["output_ids"]) >= wanted:
                break
        await asyncio.to_thread(server.ok, "/abort_request", {"rid": "r"})
        return [chunk async for chunk in chunks][-1]


def boundary(reply: dict[str, Any]) -> int:
    """Check that two spans cover the output without a gap; return where the second begins."""
    first, second = reply["meta_info"]["weight_versions"]
    assert (first["version"], first["start"], second["version"]) == ("0", 0, "7")
    assert first["end"] == second["start"] and second["end"] == len(reply["output_ids"])
    assert reply["meta_info"]["weight_version"] == "7"
    return int(first["end"])


async def test_after_retract_the_tail_is_a_fresh_generation_under_the_new_weights(
    server, model_b, reference_a, reference_b, check_greedy, forward_logprobs
):
    """Field report 1."""
    reply = await across_an_update(server, model_b, "retract")
    cut, output = boundary(reply), reply["output_ids"]
    assert reply["meta_info"]["num_retractions"] == 1
    check_greedy(reference_a, PROMPT, output[:cut])
    check_greedy(reference_b, PROMPT + output[:cut], output[cut:])
    told = [logprob for logprob, _, _ in reply["meta_info"]["output_token_logprobs"]]
    old, new = forward_logprobs(reference_a, PROMPT, output), forward_logprobs(reference_b, PROMPT, output)
    for place, token in enumerate(output):
        assert abs(told[place] - float((old if place < cut else new)[place, token])) < 1e-4


@pytest.mark.parametrize("mode", ["in_place", "none"])
async def test_in_place_and_without_a_pause_the_old_cache_is_kept(server, model_b, reference_a, reference_b, check_greedy, mode):
    reply = await across_an_update(server, model_b, mode)
    cut, output = boundary(reply), reply["output_ids"]
    assert reply["meta_info"]["num_retractions"] == 0
    check_greedy(reference_a, PROMPT, output[:cut])
    # by hand: keys and values of the head under the old weights, from the boundary on under the new
    head, tail, cache = PROMPT + output[:cut], output[cut:], DynamicCache()
    with torch.inference_mode():
        reference_a(torch.tensor([head[:-1]]), cache=cache)
        logits = reference_b(torch.tensor([[head[-1], *tail[:-1]]]), cache=cache).logits[0]
    greedy_tokens.check_greedy(torch.log_softmax(logits, dim=-1), tail)


@pytest.mark.parametrize("mode", ["retract", "in_place", "none"])
def test_no_prefix_of_the_old_weights_reaches_a_new_request(server, model_b, reference_b, forward_logprobs, mode):
    """Field report 23."""
    before = server.generate(PROMPT, **GREEDY, max_new_tokens=8)
    assert server.generate(PROMPT, **GREEDY, max_new_tokens=8)["meta_info"]["cached_tokens"] == len(PROMPT) - 1
    if mode != "none":
        server.ok("/pause_generation", {"mode": mode})
    server.ok("/update_weights_from_disk", {"model_path": str(model_b), "weight_version": "7", "flush_cache": False})
    server.ok("/continue_generation", {})
    after = server.generate(PROMPT, **GREEDY, max_new_tokens=8)
    assert after["meta_info"]["cached_tokens"] == 0
    want = forward_logprobs(reference_b, PROMPT, after["output_ids"])
    for place, (logprob, token, _) in enumerate(after["meta_info"]["output_token_logprobs"]):
        assert abs(logprob - float(want[place, token])) < 1e-4
    assert before["output_ids"] != after["output_ids"]


async def test_a_paused_server_holds_new_requests_and_answers_everything_else(server, reference_a, check_greedy):
    server.ok("/pause_generation", {"mode": "retract"})
    held = asyncio.create_task(server.generate_all([{"input_ids": PROMPT, "sampling_params": GREEDY | {"max_new_tokens": 5}}]))
    await server.until_load(lambda load: load["num_waiting_reqs"] == 1)
    for path in ("/health", "/ready", "/model_info", "/server_info"):
        await asyncio.to_thread(server.ok, path)
    assert not held.done()
    await asyncio.to_thread(server.ok, "/continue_generation", {})
    check_greedy(reference_a, PROMPT, (await held)[0]["output_ids"])


async def test_pausing_with_abort_ends_what_is_in_flight(server):
    body = {"input_ids": PROMPT, "sampling_params": GREEDY | {"max_new_tokens": 4000}}
    async with server.stream(body) as chunks:
        await anext(chunks)
        await asyncio.to_thread(server.ok, "/pause_generation", {"mode": "abort"})
        last = [chunk async for chunk in chunks][-1]
    assert last["meta_info"]["finish_reason"]["type"] == "abort"


def test_the_checksum_is_the_trainers_digest(server, model_b, reference_a, reference_b):
    """Field report 22."""
    assert server.ok("/weights_checker", {"action": "checksum"})["checksum"] == weights_digest(reference_a.named_parameters())
    server.ok("/update_weights_from_disk", {"model_path": str(model_b), "weight_version": "3"})
    assert server.ok("/weights_checker", {"action": "checksum"})["checksum"] == weights_digest(reference_b.named_parameters())
    info = server.ok("/model_info")
    assert info["weight_version"] == "3" and info["model_path"] == str(model_b)


def test_what_cannot_be_loaded_is_refused_and_changes_nothing(server, tmp_path: Path, model_b: Path, reference_a):
    other = tmp_path / "other"
    Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=16,
            tie_word_embeddings=True,
        )
    ).save_pretrained(other)
    broken = tmp_path / "broken"
    shutil.copytree(model_b, broken)
    (broken / "model.safetensors").write_bytes(b"not weights")
    bad = {
        "no Hugging Face directory": {"model_path": str(tmp_path / "missing")},
        "has shape": {"model_path": str(other)},
        "can't be read": {"model_path": str(broken)},
        "model_path must be": {},
        "weight_version must be a whole number": {"model_path": str(model_b), "weight_version": "seven"},
    }
    for message, body in bad.items():
        status, answer = server.call("/update_weights_from_disk", body)
        assert status == 400 and message in answer["message"], answer
    assert server.ok("/model_info")["weight_version"] == "0"
    assert server.ok("/weights_checker", {"action": "checksum"})["checksum"] == weights_digest(reference_a.named_parameters())


@pytest.mark.parametrize(
    ("path", "body"),
    [("/pause_generation", {"mode": "gently"}), ("/weights_checker", {"action": "reset"}), ("/abort_request", {})],
)
def test_an_unknown_mode_or_action_is_refused(server, path, body):
    assert server.call(path, body)[0] == 400
    assert server.generate(PROMPT, max_new_tokens=1)["output_ids"]

"""The batcher in this process: other architectures, seeds, and the prefix cache's bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from asyncrl_torch.batcher import Batcher
from asyncrl_torch.model import ModelRunner, UnsupportedModel, load_model, model_limits
from asyncrl_torch.prefixes import PrefixCache
from asyncrl_torch.requests import Request, parse_request
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
ARCHITECTURES: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SMALL),
    "qwen2": Qwen2Config(**{key: value for key, value in SMALL.items() if key != "head_dim"}),
    "qwen3 with some sliding layers": Qwen3Config(
        **SMALL, use_sliding_window=True, sliding_window=6, layer_types=["full_attention", "sliding_attention"]
    ),
    "mistral, all layers sliding": MistralConfig(**SMALL, sliding_window=6),
    "gemma2, eager with soft caps": Gemma2Config(**SMALL, sliding_window=6),
    "gpt2, learned positions": GPT2Config(
        vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=128, initializer_range=0.2, bos_token_id=1, eos_token_id=2
    ),
}
PROMPTS = [[1, *range(3 + n, 3 + n + length)] for n, length in enumerate([9, 0, 4, 14, 2])]


def make(folder: Path, config: PreTrainedConfig, max_running: int = 3, **options: Any) -> tuple[Batcher, Any]:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    model = load_model(folder, torch.device("cpu"), torch.float32)
    limits = model_limits(model, folder, 0)
    prefixes = PrefixCache(options.pop("entries", 16), 1000)
    runner = ModelRunner(model, limits.max_context, options.pop("prefill_tokens", 4096))
    return Batcher(runner, prefixes, max_running=max_running, seed=options.pop("seed", 0)), limits


def ask(batcher: Batcher, limits: Any, prompt: list[int], count: int, temperature: float = 0.0) -> Request:
    sampling = {"temperature": temperature, "max_new_tokens": count, "ignore_eos": True}
    request = parse_request({"input_ids": prompt, "sampling_params": sampling}, limits)
    batcher.submit(request)
    return request


def finish(batcher: Batcher) -> None:
    while batcher.has_work:
        batcher.step()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_other_architectures_generate_what_hugging_face_does(tmp_path: Path, name: str, check_greedy):
    batcher, limits = make(tmp_path, ARCHITECTURES[name], prefill_tokens=12)
    requests = [ask(batcher, limits, prompt, 20 + place) for place, prompt in enumerate(PROMPTS)]
    for _ in range(7):
        batcher.step()
    batcher.pause("retract")
    batcher.resume()
    finish(batcher)
    reference = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    for place, (prompt, request) in enumerate(zip(PROMPTS, requests, strict=True)):
        assert len(request.output) == 20 + place
        check_greedy(reference, prompt, request.output)


def test_a_model_without_a_key_value_cache_is_refused(tmp_path: Path):
    config = MambaConfig(vocab_size=64, hidden_size=32, state_size=4, num_hidden_layers=2)
    with pytest.raises(UnsupportedModel):
        make(tmp_path, config)


def test_what_a_request_draws_depends_on_seed_and_order_alone(tmp_path: Path):
    def outputs(seed: int, max_running: int) -> list[list[int]]:
        batcher, limits = make(tmp_path, ARCHITECTURES["llama"], max_running=max_running, seed=seed)
        requests = [ask(batcher, limits, prompt, 15, temperature=1.0) for prompt in PROMPTS]
        finish(batcher)
        return [request.output for request in requests]

    assert outputs(3, 5) == outputs(3, 2)
    assert outputs(3, 5) != outputs(4, 5)


def test_a_retracted_group_comes_back_with_tokens_logprobs_and_versions(tmp_path: Path):
    batcher, limits = make(tmp_path, ARCHITECTURES["llama"], max_running=8)
    requests = [ask(batcher, limits, PROMPTS[0], 20, temperature=1.0) for _ in range(6)]
    for _ in range(5):
        batcher.step()
    kept = [(list(request.output), list(request.logprobs)) for request in requests]
    batcher.pause("retract")
    assert (batcher.num_running, batcher.num_waiting) == (0, 6)
    batcher.weights_changed(4)
    batcher.resume()
    finish(batcher)
    for request, (output, logprobs) in zip(requests, kept, strict=True):
        assert request.output[:5] == output and request.logprobs[:5] == logprobs
        assert request.spans() == [{"version": "0", "start": 0, "end": 5}, {"version": "4", "start": 5, "end": 20}]
        assert request.retractions == 1


def test_weights_that_give_no_numbers_end_the_step_with_a_reason(tmp_path: Path):
    batcher, limits = make(tmp_path, ARCHITECTURES["llama"])
    ask(batcher, limits, PROMPTS[0], 5, temperature=1.0)
    with torch.no_grad():
        batcher.runner.model.get_input_embeddings().weight.fill_(float("nan"))
    with pytest.raises(FloatingPointError, match="version 0 is not finite"):
        batcher.step()
    assert [request.finish for request in batcher.fail_all("so")] == [{"type": "error", "message": "so"}]
    assert not batcher.has_work


def content(length: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(1, 1, length, 1), torch.zeros(1, 1, length, 1)


def test_the_prefix_cache_forgets_the_least_recently_used():
    cache = PrefixCache(max_entries=2, max_tokens=1000)
    cache.add([1, 2], content(2))
    cache.add([3, 4], content(2))
    assert cache.find([1, 2])[0] == 2
    cache.add([5, 6], content(2))
    assert [cache.find(tokens)[0] for tokens in ([1, 2], [3, 4], [5, 6])] == [2, 0, 2]


def test_the_prefix_cache_keeps_to_its_tokens_and_finds_shared_heads():
    cache = PrefixCache(max_entries=10, max_tokens=100)
    head = list(range(40))
    cache.add(head, content(40))
    cache.add([*head[:35], *range(50, 70)], content(55))
    assert cache.num_tokens == 95
    assert cache.find([*head, 99])[0] >= 35
    assert cache.find([7, *head])[0] == 0
    cache.add(list(range(20, 50)), content(30))
    assert cache.num_tokens <= 100
    cache.add(list(range(200)), content(200))
    assert cache.find(list(range(200)))[0] < 200
    cache.clear()
    assert cache.find(head) == (0, None) and cache.num_tokens == 0


def test_a_request_with_a_seed_draws_from_it_alone(tmp_path: Path):
    def outputs(order: list[int], server_seed: int) -> dict[int, list[int]]:
        batcher, limits = make(tmp_path, ARCHITECTURES["llama"], seed=server_seed)
        requests = {}
        for place in order:
            sampling = {"temperature": 1.0, "max_new_tokens": 15, "ignore_eos": True, "sampling_seed": 1000 + place}
            requests[place] = parse_request({"input_ids": PROMPTS[place], "sampling_params": sampling}, limits)
            batcher.submit(requests[place])
        finish(batcher)
        return {place: request.output for place, request in requests.items()}

    assert outputs([0, 1, 2], server_seed=3) == outputs([2, 0, 1], server_seed=4)

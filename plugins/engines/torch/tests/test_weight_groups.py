"""Weights by broadcast from another process, and senders that fail: nothing hangs, nothing is half updated."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from asyncrl.training.digest import weights_digest
from asyncrl_torch.collective import _packed
from asyncrl_torch.requests import BadRequest

GREEDY = {"temperature": 0, "ignore_eos": True}
PROMPT = [1, 20, 30]

# Joins the way SGLang's engines and their trainers do, through torch's own helper, then broadcasts as many weights as told.
SENDER = """
import sys
from datetime import timedelta
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _new_process_group_helper, _world
from transformers import Qwen3ForCausalLM
folder, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
timeout = timedelta(seconds=60)
tensors = [tensor.detach() for _, tensor in Qwen3ForCausalLM.from_pretrained(folder).named_parameters()]
print("ready", flush=True)
store = dist.TCPStore("127.0.0.1", port, 2, True, timeout, multi_tenant=True)
store = dist.PrefixStore("weights", store)
group, _ = _new_process_group_helper(2, 0, [], dist.Backend("gloo"), store, group_name="weights", timeout=timeout)
_world.pg_group_ranks[group] = {0: 0, 1: 1}
for tensor in tensors[:count]:
    dist.broadcast(tensor, src=0, group=group)
sys.stdin.read()
"""


class Sender:
    """The other end of a group, in a process of its own; joins as soon as it is entered."""

    def __init__(self, model: Path, port: int, count: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SENDER, str(model), str(port), str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )

    def __enter__(self) -> Sender:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def group_at(port: int) -> dict[str, Any]:
    place = {"master_address": "127.0.0.1", "master_port": port, "rank_offset": 1, "world_size": 2}
    return place | {"group_name": "weights", "backend": "gloo"}


def bucket(model, chosen: slice = slice(None), version: str = "5") -> dict[str, Any]:
    named = list(model.named_parameters())[chosen]
    return {
        "names": [name for name, _ in named],
        "dtypes": [str(tensor.dtype).removeprefix("torch.") for _, tensor in named],
        "shapes": [list(tensor.shape) for _, tensor in named],
        "group_name": "weights",
        "weight_version": version,
        "flush_cache": True,
    }


@pytest.fixture(scope="module")
def patient(start_server):
    return start_server(max_running=4)


@pytest.fixture(scope="module")
def hasty(start_server):
    """A server that waits three seconds for a group or a broadcast."""
    return start_server(max_running=4, weights_timeout=3)


async def test_weights_arrive_in_buckets_while_requests_run(patient, port, model_b, reference_a, reference_b, check_greedy):
    body = {"input_ids": PROMPT, "rid": "r", "sampling_params": GREEDY | {"max_new_tokens": 4000}}
    count = len(list(reference_b.named_parameters()))
    place = port()
    with Sender(model_b, place, count):
        await asyncio.to_thread(patient.ok, "/init_weights_update_group", group_at(place))
        async with patient.stream(body) as chunks:
            await anext(chunks)
            await asyncio.to_thread(patient.ok, "/pause_generation", {"mode": "retract"})
            await asyncio.to_thread(patient.ok, "/begin_weight_update", {})
            for part in (slice(0, 9), slice(9, None)):
                await asyncio.to_thread(patient.ok, "/update_weights_from_distributed", bucket(reference_b, part))
            await asyncio.to_thread(patient.ok, "/end_weight_update", {})
            await asyncio.to_thread(patient.ok, "/continue_generation", {})
            async for chunk in chunks:
                if chunk["meta_info"]["weight_version"] == "5":
                    break
            await asyncio.to_thread(patient.ok, "/abort_request", {"rid": "r"})
            last = [chunk async for chunk in chunks][-1]
        await asyncio.to_thread(patient.ok, "/destroy_weights_update_group", {"group_name": "weights"})
    first, second = last["meta_info"]["weight_versions"]
    assert (first["version"], second["version"]) == ("0", "5")
    cut, output = first["end"], last["output_ids"]
    check_greedy(reference_a, PROMPT, output[:cut])
    check_greedy(reference_b, PROMPT + output[:cut], output[cut:])
    assert patient.ok("/model_info")["weight_version"] == "5"
    told = patient.ok("/weights_checker", {"action": "checksum"})["checksum"]
    assert told == weights_digest(reference_b.named_parameters())


def test_calls_out_of_order_are_refused(hasty, reference_a):
    assert hasty.call("/update_weights_from_distributed", bucket(reference_a))[0] == 400
    assert hasty.call("/end_weight_update", {})[0] == 400
    assert hasty.call("/destroy_weights_update_group", {"group_name": "weights"})[0] == 400
    hasty.ok("/begin_weight_update", {})
    assert hasty.call("/begin_weight_update", {})[0] == 400
    unknown = bucket(reference_a) | {"names": ["no.such.weight"], "dtypes": ["float32"], "shapes": [[1]]}
    for bad, message in (
        (unknown, "no weight named"),
        (bucket(reference_a), "no weight group"),
        (bucket(reference_a) | {"load_format": "pickle"}, "unknown load_format 'pickle'"),
        (bucket(reference_a) | {"dtypes": []}, "0 dtypes"),
    ):
        status, answer = hasty.call("/update_weights_from_distributed", bad)
        assert status == 400 and message in answer["message"], answer
    status, answer = hasty.call("/end_weight_update", {})
    assert status == 400 and "no weight group" in answer["message"]
    assert hasty.ok("/model_info")["weight_version"] == "0"


async def test_a_sender_that_never_comes_costs_only_the_timeout(hasty, port, reference_a, check_greedy):
    """Field report 17."""
    joining = asyncio.create_task(asyncio.to_thread(hasty.call, "/init_weights_update_group", group_at(port())))
    await asyncio.to_thread(hasty.ok, "/health")
    reply = await asyncio.to_thread(lambda: hasty.generate(PROMPT, **GREEDY, max_new_tokens=5))
    check_greedy(reference_a, PROMPT, reply["output_ids"])
    status, answer = await joining
    assert status == 400 and "did not come about" in answer["message"]
    assert hasty.call("/health")[0] == 200


async def test_a_sender_that_stops_half_way_leaves_the_old_weights(hasty, port, model_b, reference_a, check_greedy):
    """Field report 17."""
    place = port()
    with Sender(model_b, place, 3):
        await asyncio.to_thread(hasty.ok, "/init_weights_update_group", group_at(place))
        await asyncio.to_thread(hasty.ok, "/begin_weight_update", {})
        await asyncio.to_thread(hasty.ok, "/update_weights_from_distributed", bucket(reference_a, slice(0, 3)))
        receiving = asyncio.create_task(
            asyncio.to_thread(hasty.call, "/update_weights_from_distributed", bucket(reference_a, slice(3, None)))
        )
        await asyncio.to_thread(hasty.ok, "/health")
        status, answer = await receiving
        assert status == 400 and "failed" in answer["message"]
    status, answer = hasty.call("/end_weight_update", {})
    assert status == 400 and "weights are as before" in answer["message"]
    assert hasty.ok("/model_info")["weight_version"] == "0"
    told = hasty.ok("/weights_checker", {"action": "checksum"})["checksum"]
    assert told == weights_digest(reference_a.named_parameters())
    check_greedy(reference_a, PROMPT, hasty.generate(PROMPT, **GREEDY, max_new_tokens=5)["output_ids"])


def test_packed_weights_are_parts_of_one_tensor_in_which_each_must_be_aligned():
    whole, (first, second) = _packed([(3,), (2, 2)], [torch.bfloat16, torch.bfloat16], torch.device("cpu"))
    whole.copy_(torch.arange(14, dtype=torch.uint8))
    assert torch.equal(first.view(torch.uint8), whole[:6]) and second.shape == (2, 2)
    assert torch.equal(second.view(-1).view(torch.uint8), whole[6:])
    with pytest.raises(BadRequest, match="can't be packed"):
        _packed([(3,), (2, 2)], [torch.bfloat16, torch.float32], torch.device("cpu"))

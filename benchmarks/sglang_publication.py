"""Seconds of a publication to a real SGLang server, by disk and by collective, against a plain copy of the bytes.

    .venv/bin/python benchmarks/sglang_publication.py      needs the environment of `make test-sglang`

A random Qwen3 of 200 MB in float32. A publication is all of it: export, pause, update, checksums before and after, label, resume. The
collective is gloo on one machine. The copy is from one array to another in the same process, after each publication; the median
ratio counts.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
from asyncrl.rollout.client import EngineClient
from asyncrl.rollout.connection import make_session
from asyncrl.rollout.weights import EngineWeights
from asyncrl.testing.models import default_model
from asyncrl.training.publication import Publisher, PublishPlan
from asyncrl_fsdp.broadcast import BUCKET_MB
from sglang_server import served
from transformers import Qwen3Config, Qwen3ForCausalLM

ROUNDS = 5
BUCKET = BUCKET_MB["cpu"] * 2**20
VOCABULARY = 64
GOALS = {"disk": 40.0, "broadcast": 20.0}


def run() -> list[dict[str, Any]]:
    from publishing import Source

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="asyncrl-bench-model-", dir="/dev/shm") as folder:
        model = make_model(Path(folder) / "model")
        with served(Path(folder) / "model") as server:
            ratios = asyncio.run(measure(server.spec, Source(model, BUCKET), model, Path(folder)))
    return [
        {
            "name": f"sglang_publication/{method}",
            "ratio": statistics.median(found),
            "goal": GOALS[method],
            "better": "lower",
            "unit": "wall time / wall time",
            "runs": ROUNDS,
            "against": "a plain copy of the bytes",
        }
        for method, found in ratios.items()
    ]


def make_model(folder: Path) -> Any:
    shutil.copytree(default_model(), folder)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=128,
        tie_word_embeddings=True,
        max_position_embeddings=4096,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(config).eval()
    model.save_pretrained(folder)
    return model


async def measure(spec: Any, source: Any, model: Any, folder: Path) -> dict[str, list[float]]:
    """Seconds of a publication by each method, in those of a copy."""
    from publishing import Source

    size = sum(parameter.numel() * 4 for parameter in model.parameters())
    arrays = np.ones(size, dtype=np.uint8), np.ones(size, dtype=np.uint8)  # both written to once, so that no page is missing
    found: dict[str, list[float]] = {}
    async with make_session() as session:
        client = EngineClient.of_spec("engine-0", spec, session, vocab_size=VOCABULARY, request_timeout=600)
        weights = EngineWeights([client], timeout=300)
        methods: tuple[Literal["disk", "broadcast"], ...] = ("disk", "broadcast")
        for method in methods:
            publisher = Publisher(PublishPlan(method, "retract", 300, "bench", folder), source, weights, version=client.version)
            taken = []
            for _ in range(ROUNDS + 1):  # the first joins the group
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.add_(1e-3)
                source.digest, source._manifest = (fresh := Source(model, BUCKET)).digest, fresh._manifest
                began = time.perf_counter()
                await publisher.publish(1.0)
                seconds, copy = time.perf_counter() - began, copy_seconds(*arrays)
                taken.append(seconds / copy)
                print(f"{size / 1e6:.0f} MB by {method}: {seconds:.3f} s, copy {copy:.3f} s", file=sys.stderr)
            found[method] = taken[1:]
            await publisher.close()
        await weights.close()
        await client.close()
    return found


def copy_seconds(source: np.ndarray, target: np.ndarray) -> float:
    began = time.perf_counter()
    np.copyto(target, source)
    return time.perf_counter() - began


if __name__ == "__main__":
    print(run())

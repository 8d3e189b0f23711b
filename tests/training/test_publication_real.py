"""Publication between the real trainer and real engine processes: what is served afterwards is what the trainer has."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
import torch
from asyncrl import EnginePlace, RunFacts, TrainerPlace, TrainingBatch, WeightGroup, WeightManifest
from asyncrl.rollout.client import EngineClient
from asyncrl.rollout.connection import make_session
from asyncrl.rollout.engine import GenerateRequest, PauseMode
from asyncrl.rollout.weights import EngineWeights
from asyncrl.samples import Completion, SamplingParams
from asyncrl.training.interfaces import Exported
from asyncrl.training.publication import Publisher, PublishPlan, free_port
from asyncrl_fsdp import FsdpOptions, FsdpTrainer
from asyncrl_torch import TorchEngine, TorchEngineOptions
from transformers import Qwen3Config, Qwen3ForCausalLM

torch.set_num_threads(1)
FACTS = RunFacts(batch_size=1, group_size=2, max_concurrent_samples=8, steps=8, synchronous=True)
PROMPT = list(range(3, 20))


@pytest.fixture
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        tie_word_embeddings=True,
        max_position_embeddings=2048,
        initializer_range=0.2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


class RealTrainer:
    """The trainer plugin on one rank, its blocking calls in threads as its actor has them."""

    def __init__(self, model: Path) -> None:
        self.plugin = FsdpTrainer(FsdpOptions(learning_rate=1e-2, warmup_steps=0), FACTS)
        place = TrainerPlace(0, 1, 0, "127.0.0.1", free_port("127.0.0.1"), "cpu", model, "float32", FACTS.steps, 0, 60.0)
        self.digest = self.plugin.trainer_open(place).digest

    def learn(self) -> float:
        """Train one step on two samples; return the norm of the update."""
        rng = np.random.default_rng(0)
        ids = rng.integers(3, 60, 20).astype(np.int32)
        response = np.tile(np.arange(10) >= 4, 2)
        batch = TrainingBatch(
            version=0,
            step=1,
            token_ids=ids,
            starts=np.array([0, 10, 20]),
            prompt_lengths=np.array([4, 4], dtype=np.int32),
            loss_mask=response,
            logprobs=np.where(response, -3.0, 0.0).astype(np.float32),
            versions=np.where(response, 0, -1).astype(np.int32),
            rewards=np.array([0.0, 1.0], dtype=np.float32),
            groups=np.array([0, 0], dtype=np.int32),
            prompt_ids=np.array([0]),
            num_response_tokens=12,
            temperature=1.0,
            max_new_tokens=6,
        )
        return self.plugin.train_batch(batch).update_norm

    async def export(self, directory: Path) -> Exported:
        return await asyncio.to_thread(self.plugin.export_model, directory)

    async def manifest(self) -> WeightManifest:
        return await asyncio.to_thread(self.plugin.weight_manifest)

    async def join(self, group: WeightGroup) -> None:
        self.group = group
        await asyncio.to_thread(self.plugin.join_weight_group, group)

    async def broadcast(self, index: int) -> int:
        return await asyncio.to_thread(self.plugin.broadcast_bucket, index)

    async def leave(self) -> None:
        await asyncio.to_thread(self.plugin.leave_weight_group)


@pytest.fixture
def trainer(model: Path) -> Iterator[RealTrainer]:
    trainer = RealTrainer(model)
    yield trainer
    trainer.plugin.trainer_close()


class World:
    """A trainer and two engine processes."""

    def __init__(self, trainer: RealTrainer, processes: list[subprocess.Popen[bytes]], clients: list[EngineClient]) -> None:
        self.trainer = trainer
        self.processes = processes
        self.clients = clients

    def publisher(self, strategy: Any, mode: PauseMode, folder: Path, digest: str, version: int) -> Publisher:
        plan = PublishPlan(strategy, mode, 60, "test", folder)
        return Publisher(plan, self.trainer, EngineWeights(self.clients, timeout=60), digest=digest, version=version)


def start_engine(index: int, model: Path, folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Start a server from the plugin's own command line."""
    log = folder / f"engine-{index}.txt"
    place = EnginePlace(index, model, "127.0.0.1", free_port("127.0.0.1"), "cpu", "float32", 0, log)
    spec = TorchEngine(TorchEngineOptions(), FACTS).engine_server(place)
    with log.open("wb") as output:
        process = subprocess.Popen(spec.argv, env=os.environ | dict(spec.env), stdout=output, stderr=subprocess.STDOUT)
    return process, spec.url


@pytest.fixture
async def world(trainer: RealTrainer, model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    folder = tmp_path_factory.mktemp("engines")
    started = [start_engine(index, model, folder) for index in range(2)]
    try:
        async with make_session() as session:
            clients = [await connect(session, f"engine-{index}", url) for index, (_, url) in enumerate(started)]
            yield World(trainer, [process for process, _ in started], clients)
    finally:
        for process, _ in started:
            process.kill()
            process.wait(30)


async def connect(session: aiohttp.ClientSession, name: str, url: str) -> EngineClient:
    client = EngineClient(name, url, session, vocab_size=64, request_timeout=60, takes_packed=True)
    async with asyncio.timeout(120):
        while not await client.reachable():  # noqa: ASYNC110 - nothing tells when another process listens
            await asyncio.sleep(0.1)
    return client


async def generate(client: EngineClient, new: int = 12) -> Completion:
    return await client.generate(GenerateRequest(np.array(PROMPT, dtype=np.int32), SamplingParams(new), affinity=0))


def exact_logprobs(trainer: RealTrainer, folder: Path, completion: Completion) -> Any:
    """What the trainer's present weights say of a completion, by a plain forward pass."""
    exported = trainer.plugin.export_model(folder / f"check-{len(list(folder.iterdir()))}")
    ids = torch.tensor([[*PROMPT, *completion.token_ids.tolist()]])
    with torch.no_grad():
        logits = (
            Qwen3ForCausalLM.from_pretrained(exported.directory, dtype=torch.float32).eval()(ids).logits[0, len(PROMPT) - 1 : -1]
        )
    return torch.log_softmax(logits, -1)[torch.arange(len(completion.token_ids)), ids[0, len(PROMPT) :]].numpy()


async def test_after_a_publication_the_engines_speak_with_the_trainers_weights(world: World, tmp_path: Path) -> None:
    """Field reports 1, 22 and 23: digests agree, versions count, nothing in flight is lost, no prefix of old weights is reused."""
    assert [await client.digest() for client in world.clients] == [world.trainer.digest] * 2
    before = await generate(world.clients[0])
    np.testing.assert_allclose(before.logprobs, exact_logprobs(world.trainer, tmp_path, before), atol=1e-4)
    version, digest = 0, world.trainer.digest
    for strategy, packed in (("disk", False), ("broadcast", False), ("broadcast", True)):
        for mode in ("retract", "in_place"):
            for client in world.clients:
                client.takes_packed = packed
            publisher = world.publisher(strategy, mode, tmp_path, digest, version)
            running = asyncio.create_task(generate(world.clients[0], 300))
            await asyncio.sleep(0.05)
            version += 1
            assert await publisher.publish(world.trainer.learn()) == version
            digest = (await world.trainer.manifest()).digest
            assert [await client.digest() for client in world.clients] == [digest] * 2
            for client in world.clients:
                after = await generate(client)
                assert after.spans == ((version, len(after.token_ids)),)
                np.testing.assert_allclose(after.logprobs, exact_logprobs(world.trainer, tmp_path, after), atol=1e-4)
            spanning = await running
            assert spanning.finish_reason != "abort" and sum(count for _, count in spanning.spans) == len(spanning.token_ids)
            assert strategy == "disk" or world.trainer.group.packed == packed
            await publisher.close()
    # the last publisher has left its group; an engine that is killed is left behind, and the other gets the weights
    publisher = world.publisher("broadcast", "retract", tmp_path, digest, version)
    await publisher.publish(world.trainer.learn())
    world.processes[1].kill()
    world.processes[1].wait(30)
    assert await publisher.publish(world.trainer.learn()) == version + 2
    assert await world.clients[0].digest() == (await world.trainer.manifest()).digest
    assert (world.clients[0].alive, world.clients[1].alive) == (True, False)
    await publisher.close()

"""Two real servers that all tests share, and the clients that a run would have."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from asyncrl.rollout.client import EngineClient
from asyncrl.rollout.connection import make_session
from asyncrl.rollout.pool import EnginePool
from asyncrl.rollout.weights import EngineWeights
from asyncrl.testing.models import default_model
from asyncrl.training.publication import Publisher, PublishPlan

sys.path.insert(0, str(Path(__file__).parent))

from models import load, randomized, without_end
from publishing import Source
from servers import Server

VOCABULARY = 64
UPDATE_SECONDS = 60.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.sglang)
            item.add_marker(pytest.mark.timeout(1800))
    own = {here / "test_start.py": 0, here / "test_conformance.py": 0}  # before there are shared servers
    order = own | {here / f"test_{name}.py": 2 for name in ("attached", "demo", "whole_runs")}  # after them
    items.sort(key=lambda item: order.get(item.path, 1))


@dataclass(frozen=True)
class Models:
    """Directories of one shape: the demo's weights, and two with random ones."""

    demo: Path
    a: Path
    b: Path


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    folder = tmp_path_factory.mktemp("models")
    demo = without_end(default_model(), folder / "demo")
    return Models(demo, randomized(demo, folder / "a", 1), randomized(demo, folder / "b", 2))


@pytest.fixture(scope="session")
def reference() -> Callable[[Path], Any]:
    """Load a model with transformers, once."""
    loaded: dict[Path, Any] = {}
    return lambda path: loaded.setdefault(path, None) or loaded.update({path: load(path)}) or loaded[path]


@pytest.fixture(scope="session")
def started() -> Iterator[list[Server]]:
    """The shared servers that were started; all end with the session."""
    servers: list[Server] = []
    yield servers
    for server in servers:
        server.end()


@pytest.fixture(scope="session")
def pair(models: Models, started: list[Server], tmp_path_factory: pytest.TempPathFactory) -> list[Server]:
    folder = tmp_path_factory.mktemp("servers")
    for index in range(2):
        started.append(Server(f"engine-{index}", models.a, folder))
    for server in started:
        server.wait()
    return started


class World:
    """Both servers as a run sees them."""

    def __init__(self, servers: list[Server], clients: list[EngineClient], folder: Path) -> None:
        self.servers = servers
        self.clients = clients
        self.pool = EnginePool(clients, backoff=0.1, health_interval=1.0)
        self.weights = EngineWeights(clients, timeout=UPDATE_SECONDS)
        self.folder = folder

    def publisher(self, strategy: Any, mode: Any, source: Source, *, timeout: float = UPDATE_SECONDS) -> Publisher:
        return Publisher(PublishPlan(strategy, mode, timeout, "test", self.folder), source, self.weights)


@pytest.fixture
async def world(pair: list[Server], models: Models, tmp_path: Path) -> AsyncIterator[World]:
    """Both servers, alive and idle, with model a as version 0."""
    for server in pair:
        server.reset(models.a)
    async with make_session() as session:
        clients = [
            EngineClient.of_spec(
                server.name, server.spec, session, vocab_size=VOCABULARY, request_timeout=900, update_timeout=UPDATE_SECONDS
            )
            for server in pair
        ]
        for client in clients:
            await client.abilities()  # a server takes seconds to list what it can do, and more on a busy machine
        world = World(pair, clients, tmp_path)
        yield world
        await world.weights.close()
        await world.pool.close()
        for client in clients:
            await client.close()

"""The engines' side of a publication, over real HTTP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from asyncrl.errors import EngineFault, PublicationError
from asyncrl.rollout.client import EngineClient
from asyncrl.rollout.connection import make_session
from asyncrl.rollout.engine import GenerateRequest, PauseMode
from asyncrl.rollout.weights import EngineWeights
from asyncrl.samples import Completion, SamplingParams
from asyncrl.training.interfaces import WeightGroup
from http_engine import WEIGHTS, HttpEngine, digest_of


class Fleet:
    """Two servers, their clients, and the engines' side of a publication."""

    def __init__(self, servers: list[HttpEngine], clients: list[EngineClient], folder: Path) -> None:
        self.servers = servers
        self.clients = clients
        self.folder = folder
        self.weights = EngineWeights(clients, timeout=30)

    async def load(self, version: int, text: str, mode: PauseMode = "retract") -> None:
        path = self.folder / f"v-{version}"
        path.mkdir(exist_ok=True)
        (path / WEIGHTS).write_text(text)
        await self.weights.load_from_disk(version, path, digest_of(text), mode)

    def served(self) -> list[tuple[str, str]]:
        return [(server.label, server.weights) for server in self.servers]

    async def ask(self, index: int = 0) -> asyncio.Task[Completion]:
        """Start a request on one engine and hold it after two tokens."""
        server = self.servers[index]
        server.hold_after = 2
        request = GenerateRequest(np.array([1], dtype=np.int32), SamplingParams(5), 0)
        task = asyncio.create_task(self.clients[index].generate(request))
        await server.until(lambda: 2 in server.generated.values())
        return task


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    session = make_session()
    servers = [await HttpEngine().start() for _ in range(2)]
    clients = [
        EngineClient(f"engine-{i}", server.url, session, vocab_size=64, request_timeout=30) for i, server in enumerate(servers)
    ]
    fleet = Fleet(servers, clients, tmp_path)
    yield fleet
    await fleet.weights.close()
    await session.close()
    for server in servers:
        await server.stop()


def opaque(fleet: Fleet) -> None:
    """Make the engines of a kind whose checksum says nothing to the trainer, as SGLang's."""
    for server, client in zip(fleet.servers, fleet.clients, strict=True):
        server.comparable = client.comparable_digest = False


@pytest.mark.parametrize("mode", ["retract", "in_place"])
async def test_every_engine_pauses_loads_confirms_and_goes_on(fleet: Fleet, mode: PauseMode) -> None:
    await fleet.load(1, "one", mode)
    assert fleet.served() == [("1", "one")] * 2
    for server, client in zip(fleet.servers, fleet.clients, strict=True):
        assert (client.version, client.alive, client.unfit, client.paused) == (1, True, False, False)
        assert not server.paused
        calls = [path for path, _ in server.requests]
        order = [
            calls.index(p) for p in ("/pause_generation", "/update_weights_from_disk", "/weights_checker", "/continue_generation")
        ]
        assert order == sorted(order)
        assert server.called("/pause_generation") == [{"mode": mode}]
        (sent,) = server.called("/update_weights_from_disk")
        assert sent["flush_cache"] is (mode == "retract") and sent["abort_all_requests"] is False


@pytest.mark.parametrize("mode", ["retract", "in_place"])
async def test_a_publication_in_the_middle_of_a_request_aborts_nothing_and_gives_two_spans(fleet: Fleet, mode: PauseMode) -> None:
    """Field report 1."""
    asked = await fleet.ask()
    await fleet.load(1, "one", mode)
    await fleet.servers[0].release()
    completion = await asked
    assert (completion.finish_reason, completion.spans, completion.admitted) == ("length", ((0, 2), (1, 3)), 0)


async def test_a_server_that_only_labels_what_is_finished_counts_as_the_version_at_admission(fleet: Fleet) -> None:
    """Field report 1."""
    fleet.servers[0].spans = False
    asked = await fleet.ask()
    await fleet.load(1, "one")
    await fleet.servers[0].release()
    assert (await asked).spans == ((0, 5),)


async def test_a_missing_label_is_set_without_aborting(fleet: Fleet) -> None:
    asked = await fleet.ask()
    fleet.servers[0].ignores_labels = True
    await fleet.load(1, "one")
    assert fleet.served()[0] == ("1", "one")
    assert fleet.servers[0].called("/update_weight_version") == [{"new_version": "1", "abort_all_requests": False}]
    await fleet.servers[0].release()
    assert (await asked).finish_reason == "length"


@pytest.mark.parametrize("path", ["/pause_generation", "/update_weights_from_disk", "/weights_checker", "/model_info"])
@pytest.mark.parametrize("fault", ["500", "close"])
async def test_one_failure_is_cured_by_another_try(fleet: Fleet, path: str, fault: str) -> None:
    faults = ["ok", fault] if path == "/model_info" else [fault]  # the first one asks who answers
    fleet.servers[1].fail(path, *faults)
    await fleet.load(1, "one")
    assert fleet.served() == [("1", "one")] * 2
    assert all(client.alive for client in fleet.clients)


async def test_an_update_that_silently_does_nothing_is_found_out(fleet: Fleet) -> None:
    """Field report 22: the server says yes, the label goes up, the weights stay."""
    for server in fleet.servers:
        server.ignores_updates = True
    with pytest.raises(PublicationError, match="version 1 reached no engine: engine-0: it serves weights with digest"):
        await fleet.load(1, "one")
    assert [server.paused for server in fleet.servers] == [False, False]


async def test_a_silent_update_of_an_opaque_engine_is_found_out(fleet: Fleet) -> None:
    """Field report 22, where the checksum cannot be compared with the trainer's: it must change."""
    opaque(fleet)
    await fleet.load(1, "one")
    for server in fleet.servers:
        server.ignores_updates = True
    with pytest.raises(PublicationError, match="engine-0: it took the update, but its weights did not change"):
        await fleet.load(2, "two")


async def test_unchanged_weights_may_stay_unchanged_on_an_opaque_engine(fleet: Fleet) -> None:
    opaque(fleet)
    await fleet.load(1, "one")
    await fleet.load(2, "one")
    assert fleet.served() == [("2", "one")] * 2


async def test_opaque_engines_that_disagree_are_found_out(fleet: Fleet) -> None:
    opaque(fleet)
    await fleet.load(1, "one")
    fleet.servers[1].fail("/update_weights_from_disk", "silent")
    fleet.servers[1].weights = "something else"
    with pytest.raises(PublicationError, match="engines serve different weights as version 2: engine-0, engine-1"):
        await fleet.load(2, "two")


async def test_an_engine_that_fails_twice_is_given_up_and_the_others_go_on(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    """Its requests end: it may hold half an update."""
    asked = await fleet.ask(1)
    fleet.servers[1].fail("/update_weights_from_disk", "500", "500")
    with caplog.at_level(logging.WARNING, "asyncrl"):
        await fleet.load(1, "one")
    assert fleet.served()[0] == ("1", "one") and fleet.clients[0].alive
    with pytest.raises(EngineFault, match="half changed"):
        await asked
    assert not fleet.clients[1].alive and not await fleet.clients[1].healthy() and not fleet.servers[1].paused
    assert "engine-1 was not brought to version 1" in caplog.text and "scripted 500" in caplog.text
    assert [client.name for client in fleet.clients if not client.alive] == ["engine-1"]
    await fleet.load(2, "two")  # the next publication reaches it again
    assert fleet.served() == [("2", "two")] * 2
    assert fleet.clients[1].alive and await fleet.clients[1].healthy()


async def test_when_every_engine_fails_the_error_names_each_with_its_cause(fleet: Fleet) -> None:
    for server in fleet.servers:
        server.fail("/update_weights_from_disk", "500", "close")
    with pytest.raises(PublicationError, match=r"version 1 reached no engine: engine-0: .*; engine-1: "):
        await fleet.load(1, "one")
    assert [server.paused for server in fleet.servers] == [False, False]


async def test_when_every_engine_fails_in_the_collective_too_the_last_error_has_their_causes(fleet: Fleet) -> None:
    for server in fleet.servers:
        server.fail("/init_weights_update_group", *["400"] * 9)

    async def join_until_none_is_left() -> None:
        while members := await fleet.weights.members():  # the first to fail ends the others' try
            group = WeightGroup("weights", "127.0.0.1", 1, 1 + len(members), "gloo", 5.0)
            with pytest.raises(PublicationError, match="joining the weight group failed"):
                await fleet.weights.join_weight_group(group)

    with pytest.raises(PublicationError, match="no engine is left to publish to: ") as caught:
        await join_until_none_is_left()
    for name in ("engine-0", "engine-1"):
        assert f"{name}: failed twice, at last: /init_weights_update_group was refused" in str(caught.value)


async def test_an_engine_that_hangs_in_an_update_is_given_up_at_the_deadline(fleet: Fleet) -> None:
    """Field report 11, for a control call."""
    fleet.weights = EngineWeights(fleet.clients, timeout=0.5)
    for server in fleet.servers:
        server.fail("/update_weights_from_disk", "hang", "hang")
    with pytest.raises(PublicationError, match=r"engine-0: not done within 0\.5 s; engine-1: not done"):
        await fleet.load(1, "one")
    assert [server.paused for server in fleet.servers] == [False, False]


async def test_a_publication_that_is_cancelled_leaves_no_engine_paused(fleet: Fleet) -> None:
    """Field report 19, for a publication under way."""
    fleet.servers[0].fail("/update_weights_from_disk", "hang")
    loading = asyncio.create_task(fleet.load(1, "one"))
    await fleet.servers[0].until(lambda: bool(fleet.servers[0].called("/update_weights_from_disk")))
    loading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loading
    assert [server.paused for server in fleet.servers] == [False, False]


async def test_a_restarted_engine_is_brought_up_by_the_next_publication(fleet: Fleet) -> None:
    await fleet.load(1, "one")
    await fleet.servers[1].stop()
    fleet.clients[1].alive = False
    await fleet.load(2, "two")
    assert fleet.served()[0] == ("2", "two") and not fleet.clients[1].alive
    fleet.servers[1].label, fleet.servers[1].weights = "default", "initial"
    await fleet.servers[1].start()
    assert not await fleet.clients[1].healthy()
    assert [client.name for client in fleet.clients if not client.alive] == ["engine-1"]
    await fleet.load(2, "two")  # the same version once more, for the newcomer
    assert fleet.served() == [("2", "two")] * 2
    assert fleet.clients[1].alive and await fleet.clients[1].healthy()


async def test_with_no_engine_left_the_publication_fails_at_once(fleet: Fleet) -> None:
    for server in fleet.servers:
        await server.stop()
    with pytest.raises(PublicationError, match=r"no engine is left to publish to: engine-0: .*Connect.*; engine-1: .*Connect"):
        await fleet.load(1, "one")


async def test_a_stale_prefix_cache_is_flushed_once_the_server_is_idle(fleet: Fleet) -> None:
    """Field report 23, for servers that keep old prefixes over an update in place."""
    fleet.clients[0].drops_stale_prefixes = False
    asked = await fleet.ask()
    await fleet.load(1, "one", "in_place")
    await fleet.servers[0].until(lambda: bool(fleet.servers[0].called("/flush_cache")))  # refused: a request runs
    await fleet.servers[0].release()
    await asked
    await fleet.servers[0].until(lambda: len(fleet.servers[0].called("/flush_cache")) >= 2)
    assert not fleet.servers[1].called("/flush_cache")

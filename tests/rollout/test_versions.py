"""Old SGLang servers: what each version can do is asked, not guessed, and it generates and is published to with that.

The table holds what the sources of each version define: endpoints, fields of requests, what answers tell. A server that has exactly that
serves it over HTTP, refuses every other endpoint, and ignores every other field, as SGLang's do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from asyncrl.errors import EngineError
from asyncrl.rollout.client import EngineClient
from asyncrl.rollout.connection import make_session
from asyncrl.rollout.engine import GenerateRequest
from asyncrl.rollout.weights import EngineWeights
from asyncrl.samples import Completion, SamplingParams
from http_engine import WEIGHTS, HttpEngine, digest_of

ALWAYS = {
    *("/health", "/generate", "/abort_request", "/flush_cache", "/get_model_info", "/pause_generation", "/continue_generation"),
    *("/update_weights_from_disk", "/init_weights_update_group", "/update_weights_from_distributed"),
}


@dataclass(frozen=True)
class Version:
    """One version of SGLang.

    Attributes:
        more: endpoints beside `ALWAYS`.
        labels: whether updates take a `weight_version`, which answers tell.
        cache_keys: whether requests have an `extra_key`.
        modes: whether a pause has a mode; else it aborts everything.
        checksums: whether `/weights_checker` knows the action checksum.
        spans: whether answers tell the version of each token.
        packs: whether `/update_weights_from_distributed` has a `load_format`, which takes a bucket as one tensor.
    """

    name: str
    more: frozenset[str] = frozenset()
    labels: bool = True
    cache_keys: bool = True
    modes: bool = True
    checksums: bool = True
    spans: bool = True
    packs: bool = True


LABELS = frozenset({"/update_weight_version"})
LEAVES = LABELS | {"/destroy_weights_update_group"}
MODES = LEAVES | {"/model_info", "/weights_checker"}
LOADS = MODES | {"/v1/loads"}
BEGINS = LOADS | {"/begin_weight_update", "/end_weight_update"}

VERSIONS = [
    Version("0.4.9.post6", labels=False, cache_keys=False, modes=False, checksums=False, spans=False, packs=False),  # and 0.4.10
    Version("0.5.1", LABELS, cache_keys=False, modes=False, checksums=False, spans=False, packs=False),  # and 0.5.2
    Version("0.5.3", LEAVES, modes=False, checksums=False, spans=False, packs=False),  # and 0.5.4, 0.5.5
    Version("0.5.6", MODES, checksums=False, spans=False),
    Version("0.5.9", LOADS, checksums=False, spans=False),
    Version("0.5.12", LOADS, spans=False),  # and 0.5.14
    Version("0.5.19", LOADS),
    Version("0.5.21", BEGINS),  # and 0.5.23
]


class OldServer(HttpEngine):
    """A server of one version. `missing` are the calls of endpoints that it does not have."""

    def __init__(self, version: Version) -> None:
        super().__init__(spans=version.spans, comparable=False)
        self.version = version
        self.missing: list[str] = []
        self.ignores_labels = not version.labels
        self.updating = "/begin_weight_update" not in version.more  # else broadcasts need no beginning
        self._waits = False

    async def _control(self, name: str, body: Any) -> Any:
        if name == "openapi.json":
            return self._api()
        if f"/{name}" not in ALWAYS | self.version.more:
            self.missing.append(name)
            return web.json_response({"detail": "Not Found"}, status=404)
        return await super()._control("model_info" if name == "get_model_info" else name.replace("/", "_"), body)

    def _api(self) -> Any:
        fields = {
            "PauseGenerationReqInput": ["mode"] * self.version.modes,
            "GenerateReqInput": ["input_ids", *["extra_key"] * self.version.cache_keys],
            "UpdateWeightsFromDistributedReqInput": ["names", *["load_format"] * self.version.packs],
        }
        schemas = {name: {"properties": {field: {} for field in known}} for name, known in fields.items()}
        return {"paths": {path: {} for path in ALWAYS | self.version.more}, "components": {"schemas": schemas}}

    async def _generate(self, body: Any) -> Any:
        answer = await super()._generate(body)
        if not self.version.labels and isinstance(answer, dict):
            del answer["meta_info"]["weight_version"]
        return answer

    def _held(self, count: int) -> bool:
        return super()._held(count) or (self._waits and count == 0)

    async def _do_pause_generation(self, body: Any) -> Any:
        if self.version.modes:
            return await super()._do_pause_generation(body)
        self._aborted.update(self.generated)
        self.paused = True

    async def _do_model_info(self, body: Any) -> Any:
        return {"model_path": "scripted", **({"weight_version": self.label} if self.version.labels else {})}

    async def _do_weights_checker(self, body: Any) -> Any:
        if not self.version.checksums:
            return web.json_response({"success": False, "message": f"Unsupported action: {body['action']}"}, status=400)
        return await super()._do_weights_checker(body)

    async def _do_v1_loads(self, body: Any) -> Any:
        return {"loads": [{"num_running_reqs": len(self.generated), "num_waiting_reqs": 0}]}

    async def _do_update_weights_from_disk(self, body: Any) -> Any:
        """Without a pause it waits for what runs, and holds what comes."""
        if not self.paused:
            self._waits = True
            async with self._changed:
                await self._changed.wait_for(lambda: not any(self.generated.values()))
            self._waits = False
        return await super()._do_update_weights_from_disk(body)


@pytest.fixture(params=VERSIONS, ids=lambda version: version.name)
async def server(request: pytest.FixtureRequest) -> AsyncIterator[OldServer]:
    server = OldServer(request.param)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def client(server: OldServer) -> AsyncIterator[EngineClient]:
    async with make_session() as session:
        client = EngineClient("engine-0", server.url, session, vocab_size=64, request_timeout=30, comparable_digest=False)
        client.drops_stale_prefixes = False
        yield client
        await client.close()


def ask(client: EngineClient) -> asyncio.Task[Completion]:
    return asyncio.create_task(client.generate(GenerateRequest(np.array([1], dtype=np.int32), SamplingParams(5), 0)))


async def test_what_it_can_do_is_what_it_says(server: OldServer, client: EngineClient) -> None:
    version, can = server.version, await client.abilities()
    assert can.info_path == ("/model_info" if "/model_info" in version.more else "/get_model_info")
    assert (can.pauses, can.labels, can.cache_keys) == (version.modes, version.labels, version.cache_keys)
    assert (can.begin_end, can.loads) == ("/begin_weight_update" in version.more, "/v1/loads" in version.more)
    assert client.takes_packed == version.packs
    assert can.leaves_groups == ("/destroy_weights_update_group" in version.more)
    assert await client.healthy() and (await client.load() is not None) == can.loads
    assert bool(await client.digest()) == version.checksums
    await client.set_version_label(0)
    if not can.leaves_groups:
        await client.leave_weight_group("none")
    assert not server.missing


async def test_a_publication_by_disk_aborts_nothing_and_no_token_is_called_younger_than_it_is(
    server: OldServer, client: EngineClient, tmp_path: Path
) -> None:
    """Where the server tells no spans, the whole request counts as of the version under which it was sent."""
    weights = EngineWeights([client], timeout=30)
    (tmp_path / WEIGHTS).write_text("one")
    server.hold_after = 2
    first = ask(client)
    await server.until(lambda: 2 in server.generated.values())
    publication = asyncio.create_task(weights.load_from_disk(1, tmp_path, digest_of("one"), "retract"))
    if server.version.modes:
        await publication
    else:
        await server.until(lambda: server._waits)
    second = ask(client)
    await server.until(lambda: len(server.generated) == 2)
    await server.release()
    await publication
    answers = await asyncio.gather(first, second)
    assert {answer.finish_reason for answer in answers} == {"length"}
    if server.version.spans:
        assert [answer.spans for answer in answers] == [((0, 2), (1, 3)), ((1, 5),)]
    elif server.version.modes:
        assert [answer.spans for answer in answers] == [((0, 5),), ((1, 5),)]
    else:  # the second was sent before the update was known to be over
        assert [answer.spans for answer in answers] == [((0, 5),), ((0, 5),)]
        assert not server.called("/pause_generation")
    assert (await ask(client)).spans == ((1, 5),) and server.weights == "one"
    assert not server.missing
    await weights.close()


async def test_a_broadcast_needs_a_pause_that_keeps_what_is_in_flight(server: OldServer, client: EngineClient) -> None:
    if server.version.modes:
        await client.begin_update()
        begun = bool(server.called("/begin_weight_update"))
        assert begun == ("/begin_weight_update" in server.version.more) and not server.missing
        return
    with pytest.raises(
        EngineError, match=r"engine-0: its pause would abort what is in flight.*publish_method = disk, or SGLang 0\.5\.6"
    ):
        await client.join_weight_group(address="127.0.0.1", port=1, rank=1, world_size=2, name="g", backend="gloo")
    assert not server.called("/init_weights_update_group")

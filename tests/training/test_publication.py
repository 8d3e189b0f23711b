"""Both sides of a publication brought together: the publisher, over engines that speak real HTTP and a trainer with scripted faults."""

from __future__ import annotations

import asyncio
import errno
import os
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from asyncrl.errors import AsyncrlError, CheckpointError, OptionError, PublicationError, ResourceError, TrainerError
from asyncrl.rollout.client import EngineClient
from asyncrl.rollout.connection import make_session
from asyncrl.rollout.engine import GenerateRequest, WeightBucket
from asyncrl.rollout.weights import EngineWeights
from asyncrl.samples import SamplingParams
from asyncrl.training.interfaces import Exported, WeightGroup, WeightManifest
from asyncrl.training.publication import Publisher, PublishPlan, check_space
from http_engine import WEIGHTS, HttpEngine, Wire, digest_of

BUCKET = WeightBucket(("w",), ("float32",), ((1,),))


class ScriptedTrainer:
    """A trainer whose weights are a text, sent as two buckets over a `Wire`. `fail` holds what its next calls raise, `full` how often the
    disk will be full."""

    def __init__(self) -> None:
        self.text = "initial"
        self.buckets = (BUCKET, BUCKET)
        self.wires: defaultdict[str, Wire] = defaultdict(Wire)
        self.fail: list[AsyncrlError] = []
        self.full = 0
        self.export_waits = asyncio.Event()
        self.export_waits.set()
        self.exported: list[Path] = []
        self.groups: list[WeightGroup] = []
        self.group = ""

    async def export(self, directory: Path) -> Exported:
        directory.mkdir()
        (directory / WEIGHTS).write_text(self.text)
        if self.full:
            self.full -= 1
            raise CheckpointError(f"can't write {directory}: {os.strerror(errno.ENOSPC)}")
        self.exported.append(directory)
        await self.export_waits.wait()
        return Exported(directory, len(self.text), digest_of(self.text))

    async def manifest(self) -> WeightManifest:
        return WeightManifest(self.buckets, len(self.text), digest_of(self.text))

    async def join(self, group: WeightGroup) -> None:
        self.groups.append(group)
        self.group = group.name

    async def broadcast(self, index: int) -> int:
        if self.fail:
            raise self.fail.pop(0)
        half = len(self.text) // 2
        part = (self.text[:half], self.text[half:])[index]
        await self.wires[self.group].send(part)
        return len(part)

    async def leave(self) -> None:
        self.wires[self.group].closed.set()


class World:
    """Two engines, a trainer and a publisher."""

    def __init__(self, servers: list[HttpEngine], clients: list[EngineClient], folder: Path) -> None:
        self.servers = servers
        self.clients = clients
        self.trainer = ScriptedTrainer()
        for server in servers:
            server.wires = self.trainer.wires
        self.folder = folder

    def publisher(self, strategy: str, *, mode: str = "retract", timeout: float = 30, digest: str = "") -> Publisher:
        plan = PublishPlan(strategy, mode, timeout, "run", self.folder)  # type: ignore[arg-type]
        return Publisher(plan, self.trainer, EngineWeights(self.clients, timeout=timeout), digest=digest)

    def served(self) -> list[tuple[str, str]]:
        return [(server.label, server.weights) for server in self.servers]

    def nothing_waits(self) -> bool:
        return not any(server.paused or server.updating or server.groups for server in self.servers)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    session = make_session()
    servers = [await HttpEngine().start() for _ in range(2)]
    clients = [
        EngineClient(f"engine-{i}", server.url, session, vocab_size=64, request_timeout=30) for i, server in enumerate(servers)
    ]
    yield World(servers, clients, tmp_path)
    await session.close()
    for server in servers:
        await server.stop()


both = pytest.mark.parametrize("strategy", ["disk", "broadcast"])


@both
@pytest.mark.parametrize("mode", ["retract", "in_place"])
async def test_each_publication_is_one_version_on_every_engine(world: World, strategy: str, mode: str) -> None:
    publisher = world.publisher(strategy, mode=mode)
    for version, text in enumerate(["first weights", "second weights"], 1):
        world.trainer.text = text
        assert await publisher.publish(update_norm=1.0) == publisher.version == version
        assert world.served() == [(str(version), text)] * 2
        assert [client.version for client in world.clients] == [version] * 2
    await publisher.close()
    assert world.nothing_waits()
    assert len(world.trainer.groups) == (strategy == "broadcast")  # joined once


@pytest.mark.parametrize("who", [(True, True), (True, False)])
async def test_buckets_are_packed_only_if_every_engine_takes_them_so(world: World, who: tuple[bool, bool]) -> None:
    """What one engine can't take, none is sent: a broadcast has one form. A bucket of several dtypes is never packed."""
    for client, takes in zip(world.clients, who, strict=True):
        client.takes_packed = takes
    mixed = WeightBucket(("v", "w"), ("float32", "bfloat16"), ((1,), (1,)))
    world.trainer.buckets = (BUCKET, mixed)
    publisher = world.publisher("broadcast")
    world.trainer.text = "new weights"
    await publisher.publish(1.0)
    assert [group.packed for group in world.trainer.groups] == [all(who)]
    for server in world.servers:
        first, second = server.called("/update_weights_from_distributed")
        assert first.get("load_format") == ("flattened_bucket" if all(who) else None)
        assert "load_format" not in second and server.weights == "new weights"
    await publisher.close()


async def test_both_sides_meet_at_the_port_that_rank_0s_node_picks(world: World) -> None:
    """It may be another node than the publisher's, where other ports are free."""
    ports = iter([4711, 4712])

    async def pick() -> int:
        return next(ports)

    plan = PublishPlan("broadcast", "retract", 30, "run", world.folder, address="10.0.0.2")
    publisher = Publisher(plan, world.trainer, EngineWeights(world.clients, timeout=30), pick_port=pick)
    world.trainer.fail = [TrainerError("connection closed by peer")]
    await publisher.publish(1.0)
    await publisher.close()
    assert [(group.address, group.port) for group in world.trainer.groups] == [("10.0.0.2", 4711), ("10.0.0.2", 4712)]
    joined = [body for server in world.servers for body in server.called("/init_weights_update_group")]
    assert {(body["master_address"], body["master_port"]) for body in joined} == {("10.0.0.2", 4711), ("10.0.0.2", 4712)}


@both
async def test_publishing_aborts_nothing_in_flight(world: World, strategy: str) -> None:
    """Field report 1: and what spans the publication has two spans."""
    world.servers[0].hold_after = 2
    asked = asyncio.create_task(
        world.clients[0].generate(GenerateRequest(np.array([1], dtype=np.int32), SamplingParams(5), affinity=0))
    )
    await world.servers[0].until(lambda: 2 in world.servers[0].generated.values())
    world.trainer.text = "new"
    await world.publisher(strategy).publish(1.0)
    await world.servers[0].release()
    completion = await asked
    assert (completion.finish_reason, completion.spans) == ("length", ((0, 2), (1, 3)))


@both
async def test_unchanged_weights_after_a_real_update_are_an_error(world: World, strategy: str) -> None:
    """Field report 22."""
    publisher = world.publisher(strategy, digest=digest_of("initial"))
    with pytest.raises(
        PublicationError, match="the weights of version 1 equal those of version 0, although training changed them"
    ):
        await publisher.publish(update_norm=0.5)
    assert publisher.version == 0 and world.served() == [("default", "initial")] * 2
    assert await publisher.publish(update_norm=0.0) == 1  # nothing was learnt, and nothing is claimed
    await publisher.close()
    assert world.nothing_waits()


@both
async def test_an_engine_that_takes_an_update_and_does_nothing_is_an_error(world: World, strategy: str) -> None:
    """Field report 22."""
    for server in world.servers:
        server.ignores_updates = True
    publisher = world.publisher(strategy)
    world.trainer.text = "new"
    with pytest.raises(PublicationError, match=r"engine-0.*engine-1"):
        await publisher.publish(1.0)
    assert publisher.version == 0
    assert not any(server.paused for server in world.servers)


async def test_an_exported_directory_is_gone_after_success_failure_and_close(world: World) -> None:
    publisher = world.publisher("disk")
    world.trainer.text = "new"
    await publisher.publish(1.0)
    assert world.trainer.exported == [world.folder / "asyncrl-run" / "v-1"]
    assert not world.trainer.exported[0].exists()
    for server in world.servers:
        server.fail("/update_weights_from_disk", "500", "500")
    world.trainer.text = "newer"
    with pytest.raises(PublicationError, match="publication of version 2 by disk: version 2 reached no engine: engine-0: .*500"):
        await publisher.publish(1.0)
    assert not world.trainer.exported[1].exists()
    await publisher.close()
    assert list(world.folder.iterdir()) == []


async def test_what_a_killed_run_of_the_same_name_left_is_removed(world: World) -> None:
    left = world.folder / "asyncrl-run" / "v-7"
    left.mkdir(parents=True)
    world.publisher("disk")
    assert not left.exists()


async def test_a_trainer_that_never_finishes_its_export_ends_the_publication(world: World) -> None:
    world.trainer.export_waits.clear()
    publisher = world.publisher("disk", timeout=0.2)
    with pytest.raises(PublicationError, match=r"not done in time \(publish_timeout is 0\.2 s\): the trainer was exporting"):
        await publisher.publish(1.0)
    assert list((world.folder / "asyncrl-run").iterdir()) == []


async def test_room_on_a_full_disk_is_waited_for(world: World) -> None:
    """As long as a publication may take; nothing is left of what did not fit."""
    publisher = world.publisher("disk")
    world.trainer.full = 2
    assert await publisher.publish(1.0) == 1
    assert publisher.metrics.drain()["publication/retries"][""] == 1

    world.trainer.full, publisher = 1000, world.publisher("disk", timeout=0.2)
    with pytest.raises(PublicationError, match=r"not done in time \(publish_timeout is 0\.2 s\): can't write .*: No space left"):
        await publisher.publish(1.0)
    assert list((world.folder / "asyncrl-run").iterdir()) == []


@pytest.mark.parametrize(
    "path",
    ["/init_weights_update_group", "/begin_weight_update", "/update_weights_from_distributed", "/end_weight_update"],
)
@pytest.mark.parametrize("fault", ["400", "500", "close"])
async def test_a_broadcast_whose_http_side_fails_is_tried_again_in_a_new_group(world: World, path: str, fault: str) -> None:
    """Field report 17: the trainer's send and the other engine's receive would otherwise wait for ever."""
    world.servers[1].fail(path, fault)
    world.trainer.text = "new weights"
    publisher = world.publisher("broadcast")
    async with asyncio.timeout(20):
        assert await publisher.publish(1.0) == 1
    assert world.served() == [("1", "new weights")] * 2
    assert all(client.alive for client in world.clients)
    await publisher.close()
    assert world.nothing_waits()


async def test_a_broadcast_whose_trainer_side_fails_is_tried_again(world: World) -> None:
    """Field report 17, from the other side: the engines wait in HTTP calls for what never comes."""
    world.trainer.fail = [TrainerError("out of memory")]
    world.trainer.text = "new weights"
    publisher = world.publisher("broadcast")
    async with asyncio.timeout(20):
        assert await publisher.publish(1.0) == 1
    assert world.served() == [("1", "new weights")] * 2


async def test_a_trainer_side_that_keeps_failing_ends_in_one_error_with_its_cause(world: World) -> None:
    """Field report 17."""
    world.trainer.fail = [TrainerError("out of memory")] * 3
    publisher = world.publisher("broadcast")
    world.trainer.text = "new weights"
    async with asyncio.timeout(20):
        with pytest.raises(PublicationError, match="publication of version 1 by broadcast: trainer: out of memory"):
            await publisher.publish(1.0)
    assert world.nothing_waits()


async def test_an_engine_that_keeps_failing_is_left_out_of_the_group(world: World) -> None:
    """Field report 17: the others get the weights."""
    world.servers[1].fail("/update_weights_from_distributed", "500", "500")
    publisher = world.publisher("broadcast")
    world.trainer.text = "new weights"
    async with asyncio.timeout(20):
        await publisher.publish(1.0)
    assert world.served()[0] == ("1", "new weights") and world.clients[0].alive
    assert not world.clients[1].alive
    assert [group.world_size for group in world.trainer.groups] == [3, 3, 2]
    world.trainer.text = "newer weights"
    await publisher.publish(1.0)  # it is taken in again
    assert world.served() == [("2", "newer weights")] * 2 and world.clients[1].alive


async def test_an_engine_that_hangs_in_a_broadcast_ends_it_by_name(world: World) -> None:
    """Field report 17: nobody fails, one side only never answers."""
    world.servers[1].fail("/update_weights_from_distributed", "hang")
    publisher = world.publisher("broadcast", timeout=0.5)
    world.trainer.text = "new weights"
    async with asyncio.timeout(20):
        with pytest.raises(PublicationError, match=r"receiving bucket 1 of 2 failed: .*engine-1: not done within 0\.5 s"):
            await publisher.publish(1.0)
    assert world.nothing_waits()


async def test_an_engine_that_dies_in_a_broadcast_does_not_stop_the_other(world: World) -> None:
    """Field report 17."""
    world.servers[1].fail("/update_weights_from_distributed", "hang")
    publisher = world.publisher("broadcast")
    world.trainer.text = "new weights"
    publishing = asyncio.create_task(publisher.publish(1.0))
    await world.servers[1].until(lambda: bool(world.servers[1].called("/update_weights_from_distributed")))
    await world.servers[1].stop()
    async with asyncio.timeout(20):
        await publishing
    assert world.served()[0] == ("1", "new weights") and not world.clients[1].alive


@both
async def test_a_cancelled_publication_leaves_nothing_waiting(world: World, strategy: str) -> None:
    """Field report 19: leaving while a publication is under way."""
    path = "/update_weights_from_disk" if strategy == "disk" else "/update_weights_from_distributed"
    world.servers[1].fail(path, "hang")
    publisher = world.publisher(strategy)
    world.trainer.text = "new weights"
    publishing = asyncio.create_task(publisher.publish(1.0))
    await world.servers[1].until(lambda: bool(world.servers[1].called(path)))
    publishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await publishing
    await publisher.close()
    assert world.nothing_waits() and list(world.folder.iterdir()) == []


@both
async def test_a_restarted_engine_is_brought_up(world: World, strategy: str) -> None:
    publisher = world.publisher(strategy)
    world.trainer.text = "first"
    await publisher.publish(1.0)
    await world.servers[1].stop()
    world.clients[1].alive = False
    world.trainer.text = "second"
    await publisher.publish(1.0)
    world.servers[1].label, world.servers[1].weights, world.servers[1].groups = "default", "initial", {}
    await world.servers[1].start()
    assert await publisher.bring_up() == 2  # nothing was learnt since: the version stays
    assert world.served() == [("2", "second")] * 2
    assert all(client.alive for client in world.clients)
    world.trainer.text = "third"
    assert await publisher.bring_up() == 3  # what the trainer has now is newer, and says so


@both
async def test_aborting_what_is_in_flight_is_refused(world: World, strategy: str) -> None:
    with pytest.raises(OptionError, match="would kill work that is always in flight.*use 'retract' or 'in_place'"):
        world.publisher(strategy, mode="abort")


def test_the_plan_knows_its_own_ways(tmp_path: Path) -> None:
    plan = PublishPlan("disk", "retract", 1.0, "run", tmp_path)
    with pytest.raises(OptionError, match="no such way to publish: 'pigeon'"):
        replace(plan, strategy="pigeon")  # type: ignore[arg-type]


def test_a_full_disk_is_refused_with_the_numbers(tmp_path: Path) -> None:
    check_space(tmp_path / "not" / "yet", 1000, "publish_dir")
    with pytest.raises(ResourceError, match=r"publish_dir: .* MB free where 1,000,000,000\.0 MB are needed"):
        check_space(tmp_path / "not" / "yet", 10**15, "publish_dir")


async def test_what_was_published_is_measured(world: World) -> None:
    publisher = world.publisher("disk")
    world.trainer.text = "new"
    await publisher.publish(1.0)
    delta = publisher.metrics.drain()
    assert delta["publication/seconds"][""] > 0 and delta["publication/gigabytes_per_second"][""] > 0

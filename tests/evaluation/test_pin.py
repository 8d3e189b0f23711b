"""Engines of a backend's own are pinned to a checkpoint, and a result of any other version is none: real servers, real weights."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asyncrl import Checkpoint, EvalSkip
from asyncrl.errors import RunError
from asyncrl.evaluation.pin import OwnEngines, OwnEvalSets
from asyncrl.testing.models import altered_copy, default_model
from asyncrl.training.publication import free_port
from asyncrl.training.snapshots import mark_complete
from own_engines import TorchServer, eval_sets, lying_proxy, own_engines

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model() -> Path:
    return default_model()


@pytest.fixture(scope="module")
def snapshot(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Other weights than the model's."""
    folder = altered_copy(model, tmp_path_factory.mktemp("snapshots") / "step-4")
    mark_complete(folder)
    return folder


@pytest.fixture(scope="module")
def shared_server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchServer]:
    server = TorchServer(model, tmp_path_factory.mktemp("server")).wait()
    yield server
    server.close()


@pytest.fixture
def server(shared_server: TorchServer, model: Path) -> TorchServer:
    """The server as it was started."""
    shared_server.call("/update_weights_from_disk", {"model_path": str(model), "weight_version": "0"})
    return shared_server


@pytest.fixture
def own_server(model: Path, tmp_path: Path) -> Iterator[TorchServer]:
    """A server that may be hurt."""
    server = TorchServer(model, tmp_path).wait()
    yield server
    server.close()


async def busy(engines: OwnEngines, place: int) -> None:
    """Wait until an engine has requests in flight."""
    while not engines.engines[place].in_flight:  # noqa: ASYNC110
        await asyncio.sleep(0)


async def test_a_pinned_engine_generates_with_the_version_of_the_checkpoint(
    server: TorchServer, model: Path, snapshot: Path
) -> None:
    """Field report 24: a point measures the version that it is labelled with."""
    async with own_engines([server.spec], model) as engines:
        sets = eval_sets(engines)
        await sets.pin(Checkpoint(4, 4, snapshot))
        later = (await sets.run(sets.engines)).sets["held-out"]
        digest = await engines.engines[0].digest()
        await sets.pin(Checkpoint(0, 0, model, marked=False))
        first = (await sets.run(sets.engines)).sets["held-out"]
        assert digest != await engines.engines[0].digest()
    assert (later.version_mean, later.mixed_version, later.failed, later.num_samples) == (4.0, 0.0, 0.0, 8)
    assert (first.version_mean, first.failed) == (0.0, 0.0)


async def test_engines_that_require_a_key_are_pinned_and_evaluate_with_it_alone(
    model: Path, snapshot: Path, tmp_path: Path
) -> None:
    server = TorchServer(model, tmp_path, api_key="key-of-the-run").wait()
    try:
        async with own_engines([server.spec], model) as engines:
            sets = eval_sets(engines)
            await sets.pin(Checkpoint(4, 4, snapshot))
            assert (await sets.run(sets.engines)).sets["held-out"].failed == 0.0
        async with own_engines([replace(server.spec, api_key="another")], model) as engines:
            with pytest.raises(EvalSkip, match=r"unhealthy: .*refused with 401"):
                await engines.pin(Checkpoint(4, 4, snapshot))
    finally:
        server.close()


async def test_the_digest_is_compared_where_it_is_known(server: TorchServer, model: Path, snapshot: Path) -> None:
    async with own_engines([server.spec], model) as engines:
        await engines.pin(Checkpoint(4, 4, snapshot))
        digest = await engines.engines[0].digest()
        await engines.pin(Checkpoint(4, 4, snapshot, digest=digest))
        with pytest.raises(EvalSkip, match=r"pin_violation: .* digest .*, those of the checkpoint have 012345"):
            await engines.pin(Checkpoint(4, 4, snapshot, digest="0123456789"))


async def test_a_digest_that_is_not_comparable_is_not_compared(server: TorchServer, model: Path, snapshot: Path) -> None:
    async with own_engines([replace(server.spec, comparable_digest=False)], model) as engines:
        await engines.pin(Checkpoint(4, 4, snapshot, digest="0123456789"))


async def test_nothing_is_generated_before_the_pin(server: TorchServer, model: Path) -> None:
    async with own_engines([server.spec], model) as engines:
        sets = eval_sets(engines)
        with pytest.raises(EvalSkip, match="pin_violation: the engines were not brought to the checkpoint"):
            await sets.run(sets.engines)


async def test_a_server_that_reports_another_version_is_tried_twice_and_then_a_violation(
    server: TorchServer, model: Path, snapshot: Path
) -> None:
    def lie(path: str, reply: dict[str, Any]) -> dict[str, Any]:
        return reply | ({"weight_version": "3"} if path == "/model_info" else {})

    async with (
        lying_proxy(server.url, lie) as (url, asked),
        own_engines([server.spec, replace(server.spec, url=url)], model) as engines,
    ):
        with pytest.raises(EvalSkip) as caught:
            await engines.pin(Checkpoint(4, 4, snapshot))
    assert caught.value.message == "pin_violation: eval-engine-1 serves version 3 where 4 was loaded"
    assert asked.count("/update_weights_from_disk") == 2


async def test_a_server_that_is_wrong_once_is_pinned_at_the_second_try(server: TorchServer, model: Path, snapshot: Path) -> None:
    told = []

    def lie(path: str, reply: dict[str, Any]) -> dict[str, Any]:
        if path == "/model_info" and not told:
            told.append(path)
            return reply | {"weight_version": "3"}
        return reply

    async with lying_proxy(server.url, lie) as (url, _), own_engines([replace(server.spec, url=url)], model) as engines:
        sets = eval_sets(engines)
        await sets.pin(Checkpoint(4, 4, snapshot))
        assert (await sets.run(sets.engines)).sets["held-out"].version_mean == 4.0
    assert told


async def test_an_answer_of_another_version_is_a_violation(server: TorchServer, model: Path, snapshot: Path) -> None:
    def lie(path: str, reply: dict[str, Any]) -> dict[str, Any]:
        if path == "/generate":
            count = len(reply["output_ids"])
            reply["meta_info"]["weight_versions"] = [{"version": "3", "start": 0, "end": count}]
        return reply

    async with lying_proxy(server.url, lie) as (url, _), own_engines([replace(server.spec, url=url)], model) as engines:
        sets = eval_sets(engines)
        await sets.pin(Checkpoint(4, 4, snapshot))
        with pytest.raises(EvalSkip, match="pin_violation: an answer was generated by version 3, .* pinned to 4"):
            await sets.run(sets.engines)


@pytest.mark.parametrize("label", ["9", "4"])
async def test_weights_that_somebody_loads_meanwhile_are_a_violation_under_any_label(
    server: TorchServer, model: Path, snapshot: Path, label: str
) -> None:
    others = []

    def meddle(path: str, reply: dict[str, Any]) -> dict[str, Any]:
        if path == "/generate" and not others:
            others.append(server.call("/update_weights_from_disk", {"model_path": str(model), "weight_version": label}))
        return reply

    async with lying_proxy(server.url, meddle) as (url, _), own_engines([replace(server.spec, url=url)], model) as engines:
        sets = eval_sets(engines, prompts=40)
        await sets.pin(Checkpoint(4, 4, snapshot))
        with pytest.raises(EvalSkip, match="pin_violation"):
            await sets.run(sets.engines)
    assert others


async def test_a_snapshot_that_is_torn_or_gone_is_missing(
    server: TorchServer, model: Path, snapshot: Path, tmp_path: Path
) -> None:
    async with own_engines([server.spec], model) as engines:
        torn = tmp_path / "torn"
        shutil.copytree(model, torn)
        for directory in (tmp_path / "gone", torn):
            with pytest.raises(EvalSkip, match="ckpt_missing"):
                await engines.pin(Checkpoint(4, 4, directory))


async def test_a_snapshot_deleted_while_it_is_loaded_is_missing_and_not_the_servers_fault(
    server: TorchServer, model: Path, snapshot: Path, tmp_path: Path
) -> None:
    doomed = tmp_path / "doomed"
    shutil.copytree(snapshot, doomed)

    def delete(path: str, reply: dict[str, Any]) -> dict[str, Any]:
        if path == "/update_weights_from_disk":
            shutil.rmtree(doomed, ignore_errors=True)
        return reply

    async with lying_proxy(server.url, delete) as (url, _), own_engines([replace(server.spec, url=url)], model) as engines:
        with pytest.raises(EvalSkip, match="ckpt_missing"):
            await engines.pin(Checkpoint(4, 4, doomed))


async def test_a_server_that_hangs_at_load_is_unhealthy_at_the_deadline(server: TorchServer, model: Path, snapshot: Path) -> None:
    server.stop()
    try:
        async with own_engines([server.spec], model, load_timeout=1.0) as engines:
            with pytest.raises(EvalSkip, match=r"unhealthy: eval-engine-0: /update_weights_from_disk got no answer within 1 s"):
                await engines.pin(Checkpoint(4, 4, snapshot))
    finally:
        server.go_on()


async def test_a_server_that_is_dead_is_unhealthy_however_well_the_others_are(
    server: TorchServer, model: Path, snapshot: Path
) -> None:
    dead = replace(server.spec, url=f"http://127.0.0.1:{free_port('127.0.0.1')}")
    async with own_engines([server.spec, dead], model) as engines:
        with pytest.raises(EvalSkip, match="unhealthy: eval-engine-1: /update_weights_from_disk failed"):
            await engines.pin(Checkpoint(4, 4, snapshot))


async def test_a_server_that_dies_while_it_generates_leaves_the_point_to_the_others(
    server: TorchServer, own_server: TorchServer, model: Path, snapshot: Path
) -> None:
    async with own_engines([server.spec, own_server.spec], model) as engines:
        sets = eval_sets(engines, prompts=60)
        await sets.pin(Checkpoint(4, 4, snapshot))
        running = asyncio.ensure_future(sets.run(sets.engines))
        await busy(engines, 1)
        own_server.kill()
        one = (await running).sets["held-out"]
    assert (one.num_samples, one.failed, one.version_mean) == (60, 0.0, 4.0)


@pytest.mark.minutes
@pytest.mark.long
async def test_the_last_server_that_dies_while_it_generates_makes_the_point_unhealthy(
    own_server: TorchServer, model: Path, snapshot: Path
) -> None:
    async with own_engines([own_server.spec], model) as engines:
        sets = eval_sets(engines, prompts=60)
        await sets.pin(Checkpoint(4, 4, snapshot))
        running = asyncio.ensure_future(sets.run(sets.engines))
        await busy(engines, 0)
        own_server.kill()
        with pytest.raises(EvalSkip, match="unhealthy: no engine is alive"):
            await running


@pytest.mark.minutes
@pytest.mark.long
async def test_a_server_that_hangs_while_it_generates_makes_the_point_unhealthy(
    server: TorchServer, model: Path, snapshot: Path
) -> None:
    async with own_engines([server.spec], model) as engines:
        sets = eval_sets(engines, prompts=60)
        await sets.pin(Checkpoint(4, 4, snapshot))
        running = asyncio.ensure_future(sets.run(sets.engines))
        await busy(engines, 0)
        server.stop()
        with pytest.raises(EvalSkip, match="unhealthy: no engine is alive"):
            await running
    server.go_on()


@pytest.mark.minutes
@pytest.mark.long
async def test_a_server_that_hangs_while_it_generates_leaves_the_point_to_the_others(
    server: TorchServer, own_server: TorchServer, model: Path, snapshot: Path
) -> None:
    async with own_engines([server.spec, own_server.spec], model) as engines:
        sets = eval_sets(engines, prompts=60)
        await sets.pin(Checkpoint(4, 4, snapshot))
        running = asyncio.ensure_future(sets.run(sets.engines))
        await busy(engines, 1)
        own_server.stop()
        one = (await running).sets["held-out"]
    own_server.go_on()
    assert (one.num_samples, one.failed, one.version_mean) == (60, 0.0, 4.0)


async def test_a_backend_without_engines_of_its_own_is_told_so(server: TorchServer, model: Path, snapshot: Path) -> None:
    async with own_engines([server.spec], model) as engines:
        sets = OwnEvalSets(eval_sets(engines)._runs, None)
        with pytest.raises(RunError, match="does not implement eval_engines"):
            await sets.pin(Checkpoint(4, 4, snapshot))
        with pytest.raises(RunError, match="does not implement eval_engines"):
            sets.engines  # noqa: B018
        with pytest.raises(RunError, match="uses_rollout_engines"):
            sets.rollout_engines  # noqa: B018

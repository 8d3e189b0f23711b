"""An eval backend's own engines, as real SGLang servers: pinned, read back, and watched while they generate."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from typing import Any

import pytest
from asyncrl import Checkpoint, EvalSkip
from own_engines import eval_sets, lying_proxy, own_engines


async def test_both_servers_are_brought_to_each_checkpoint(world: Any, models: Any) -> None:
    specs = [server.spec for server in world.servers]
    async with own_engines(specs, models.a) as engines:
        sets = eval_sets(engines)
        for version, model in ((4, models.b), (5, models.a)):
            await sets.pin(Checkpoint(version, version, model, marked=False))
            one = (await sets.run(sets.engines)).sets["held-out"]
            assert (one.version_mean, one.mixed_version, one.failed, one.num_samples) == (float(version), 0.0, 0.0, 8)


async def test_weights_that_somebody_loads_meanwhile_are_seen_under_the_same_label(world: Any, models: Any) -> None:
    server = world.servers[0]
    others: list[Any] = []

    def meddle(path: str, reply: dict[str, Any]) -> dict[str, Any]:
        if path == "/generate" and not others:
            others.append(server.call("/update_weights_from_disk", {"model_path": str(models.a), "weight_version": "4"}))
        return reply

    async with lying_proxy(server.url, meddle) as (url, _), own_engines([replace(server.spec, url=url)], models.a) as engines:
        sets = eval_sets(engines, prompts=40)
        await sets.pin(Checkpoint(4, 4, models.b, marked=False))
        with pytest.raises(EvalSkip, match=r"pin_violation: the weights of eval-engine-0 were changed"):
            await sets.run(sets.engines)


async def test_a_directory_that_is_no_model_is_refused_by_the_server_and_told(world: Any, models: Any, tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text((models.a / "config.json").read_text())
    async with own_engines([world.servers[0].spec], models.a) as engines:
        with pytest.raises(EvalSkip, match="unhealthy: eval-engine-0: /update_weights_from_disk"):
            await engines.pin(Checkpoint(4, 4, tmp_path, marked=False))
        await engines.pin(Checkpoint(5, 5, models.a, marked=False))


@pytest.mark.long
async def test_a_server_that_hangs_at_the_pin_costs_the_point_and_no_more(world: Any, models: Any) -> None:
    specs = [server.spec for server in world.servers]
    async with own_engines(specs, models.a, load_timeout=10.0) as engines:
        await asyncio.to_thread(world.servers[0].send, signal.SIGSTOP)
        try:
            with pytest.raises(EvalSkip, match=r"unhealthy: eval-engine-0: /update_weights_from_disk got no answer within 10 s"):
                await engines.pin(Checkpoint(4, 4, models.b, marked=False))
        finally:
            await asyncio.to_thread(world.servers[0].send, signal.SIGCONT)
    async with own_engines(specs, models.a) as engines:
        await engines.pin(Checkpoint(5, 5, models.a, marked=False))


@pytest.mark.long
async def test_a_server_that_hangs_while_it_evaluates_leaves_the_point_to_the_other(world: Any, models: Any) -> None:
    specs = [server.spec for server in world.servers]
    async with own_engines(specs, models.a) as engines:
        sets = eval_sets(engines, prompts=40, tokens=60)
        await sets.pin(Checkpoint(4, 4, models.b, marked=False))
        running = asyncio.ensure_future(sets.run(sets.engines))
        async with asyncio.timeout(60):
            while not engines.engines[0].in_flight:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await asyncio.to_thread(world.servers[0].send, signal.SIGSTOP)
        try:
            one = (await asyncio.wait_for(running, 300)).sets["held-out"]
        finally:
            await asyncio.to_thread(world.servers[0].send, signal.SIGCONT)
    assert (one.num_samples, one.failed, one.version_mean) == (40, 0.0, 4.0)


async def test_a_server_killed_at_the_pin_costs_the_point_and_the_other_is_pinned_for_the_next(world: Any, models: Any) -> None:
    specs = [server.spec for server in world.servers]
    async with own_engines(specs, models.a) as engines:
        load = engines.engines[0].load_from_disk

        async def killed(*arguments: Any, **more: Any) -> None:
            if world.servers[0].process.poll() is None:
                await asyncio.to_thread(world.servers[0].kill)
            await load(*arguments, **more)

        engines.engines[0].load_from_disk = killed  # type: ignore[method-assign]
        with pytest.raises(EvalSkip, match="unhealthy: eval-engine-0: /update_weights_from_disk failed"):
            await engines.pin(Checkpoint(4, 4, models.b, marked=False))
    async with own_engines(specs[1:], models.a) as engines:
        await engines.pin(Checkpoint(5, 5, models.a, marked=False))

"""An engine's actor and server are started again, whatever became of them, and it is always known where the server answers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import ray
from asyncrl.errors import ActorLost, DeadlineExceeded
from asyncrl.rollout.engine import EnginePlace, ServerSpec
from asyncrl.runtime import engine_group
from asyncrl.runtime.cluster import NEVER_RAN, NODE_DIED
from asyncrl.runtime.engine_actor import EngineAddress, EngineJob
from asyncrl.runtime.engine_group import EngineServer
from ray.exceptions import ActorDiedError, RayActorError

PLACE = EnginePlace(0, Path("model"), "127.0.0.1", 0, "cpu", "float32", 0, Path("engine-0.txt"))


class NodeGone(ActorDiedError):
    """What Ray raises for an actor that it had put on a node that was gone already."""

    def __str__(self) -> str:
        return f"{NODE_DIED}\n{NEVER_RAN} - it was cancelled before it started running."


class Actor:
    """Owns a server. `gone`: what each call of it raises; `stuck`: its starts never come to an end."""

    def __init__(self, url: str, *, gone: type[RayActorError] | None = None, stuck: bool = False) -> None:
        self._url, self._gone, self._stuck = url, gone, stuck
        self.starting = asyncio.Event()
        self.ended = False

    def __getattr__(self, name: str) -> Any:
        class Method:
            @staticmethod
            async def remote(*_: Any) -> Any:
                if self._gone is not None:
                    raise self._gone
                if name != "start":
                    return name in ("running", "healthy")
                self.starting.set()
                if self._stuck:
                    await asyncio.Event().wait()
                return EngineAddress("engine-0", ServerSpec((), self._url))

        return Method


@pytest.fixture(autouse=True)
def ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "kill", lambda actor: setattr(actor, "ended", True))


def server(*actors: Actor, timeout: float = 60.0) -> EngineServer:
    following = iter(actors)
    return EngineServer(EngineJob("engine-0", PLACE), lambda: next(following), timeout, Path("model"))


async def test_an_actor_that_was_put_on_a_node_that_is_gone_is_placed_again() -> None:
    engine = server(Actor("a", gone=NodeGone), Actor("b", gone=NodeGone), Actor("c"))
    await engine.start()
    assert engine.address.spec.url == "c"


async def test_one_that_ran_and_died_is_an_error() -> None:
    with pytest.raises(ActorLost, match="^engine-0: its process died"):
        await server(Actor("a", gone=ActorDiedError)).start()


@pytest.mark.parametrize("given_up", [asyncio.CancelledError, DeadlineExceeded])
async def test_a_start_that_nobody_waits_for_any_more_is_given_up_with_its_actor(
    given_up: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may still come to an end, at an address that nobody was told."""
    first, second = Actor("a", stuck=True), Actor("b")
    monkeypatch.setattr(engine_group, "SPARE_SECONDS", 0.0)
    engine = server(first, second, timeout=0.2 if given_up is DeadlineExceeded else 60.0)
    starting = asyncio.ensure_future(engine.start())
    await first.starting.wait()
    if given_up is asyncio.CancelledError:
        starting.cancel()
    with pytest.raises(given_up):
        await starting
    assert await engine.look() == "dead"
    await engine.start()
    assert first.ended and not second.ended
    assert await engine.look() == "well"
    assert engine.address.spec.url == "b"


async def test_a_start_that_is_waited_for_keeps_the_actor() -> None:
    only = Actor("a")
    engine = server(only)
    await engine.start()
    await engine.start()
    assert not only.ended

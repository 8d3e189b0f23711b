"""Starting Ray on a machine that has little time for it, and asking its actors."""

from __future__ import annotations

import asyncio
import inspect
import logging
import shutil
import threading
from collections.abc import Iterator

import pytest
import ray._private.node
from asyncrl.errors import ResourceError
from asyncrl.runtime.cluster import SLOW_NODE, Cluster, ask


class Busy(Cluster):
    """Its Ray node is too slow for Ray `slow` times; then `error` is raised, if there is one."""

    def __init__(self, slow: int, error: str = "") -> None:
        super().__init__("", [])
        self.slow, self.error = slow, error
        self.threads: list[threading.Thread] = []

    def _connect(self) -> None:
        self.threads.append(threading.current_thread())
        if len(self.threads) <= self.slow:
            raise Exception(f"The current node {SLOW_NODE}.")
        if self.error:
            raise Exception(self.error)


@pytest.fixture
def made() -> Iterator[list[Busy]]:
    clusters: list[Busy] = []
    yield clusters
    for cluster in clusters:
        cluster._stopped.set()
        shutil.rmtree(cluster.temp_dir)


async def test_a_node_that_is_too_slow_for_ray_is_started_again_by_another_thread(
    made: list[Busy], caplog: pytest.LogCaptureFixture
) -> None:
    made.append(cluster := Busy(slow=2))
    with caplog.at_level(logging.WARNING, "asyncrl"):
        await cluster.start(60.0)
    assert len(set(cluster.threads)) == 3
    assert caplog.text.count("is started again") == 2


@pytest.mark.parametrize(("slow", "timeout", "why"), [(0, 60.0, "no space left"), (10**9, 0.2, "")])
async def test_what_does_not_start_is_one_error(made: list[Busy], slow: int, timeout: float, why: str) -> None:
    made.append(cluster := Busy(slow, error="no space left"))
    with pytest.raises(ResourceError, match=f"a private Ray cluster did not start: .*{why}"):
        await cluster.start(timeout)


def test_ray_still_says_it_in_these_words() -> None:
    assert SLOW_NODE in " ".join(inspect.getsource(ray._private.node).replace('"', " ").split())


async def test_a_cancellation_that_comes_together_with_the_answer_is_not_lost() -> None:
    """What watches for ever, and was told to stop, would go on."""
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    asking = asyncio.ensure_future(ask(answer, "an actor", 60.0))
    await asyncio.sleep(0)
    answer.set_result(1)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking

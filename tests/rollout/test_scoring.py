"""Scoring happens in processes that can be killed, and nothing of them stays behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from asyncrl.errors import PluginFailed, PluginLoadError, Stopped
from asyncrl.rollout.scoring import ScoringPool
from asyncrl.samples import Score

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def scorers_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))


@pytest.fixture(autouse=True)
def no_process_stays_behind() -> Iterator[None]:
    before = psutil.Process().children()
    yield
    assert set(psutil.Process().children()) <= set(before)


@asynccontextmanager
async def pool_of(function: str, **settings: Any) -> AsyncIterator[ScoringPool]:
    pool = ScoringPool(f"example_scorers:{function}", **{"timeout": 60.0} | settings)
    try:
        yield pool
    finally:
        await pool.close()


def gone(process_id: int, seconds: float = 30.0) -> bool:
    """Whether the process is no more (a zombie that init has not fetched yet counts as gone)."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not psutil.pid_exists(process_id) or psutil.Process(process_id).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False


async def file_written(path: Path) -> str:
    async with asyncio.timeout(60):
        while not path.exists() or not path.read_text():  # noqa: ASYNC110  (a file has no event)
            await asyncio.sleep(0.01)
    return path.read_text()


async def test_a_reward_comes_back() -> None:
    async with pool_of("equal") as pool:
        assert await pool.submit("12", "12") == Score(1.0)
        assert await pool.submit("21", "12") == Score(0.0)


async def test_any_text_arrives_as_it_is() -> None:
    """Null bytes, newlines, lone surrogates and very long strings are data like any other."""
    async with pool_of("equal") as pool:
        for text in ("", "\0", 'a\nb"', "\ud800", "∞𝔸", "x" * 3_000_000):
            assert await pool.submit(text, text) == Score(1.0)


async def test_what_a_scorer_prints_disturbs_nothing() -> None:
    async with pool_of("half") as pool:
        assert [await pool.submit("{}") for _ in range(3)] == [Score(0.5)] * 3


async def test_workers_start_when_needed_and_are_kept() -> None:
    before = psutil.Process().children()
    async with pool_of("process_id", workers=2) as pool:
        assert psutil.Process().children() == before
        assert len({(await pool.submit()).reward for _ in range(10)}) == 1
        together = await asyncio.gather(*[pool.submit() for _ in range(50)])
        assert len({score.reward for score in together}) <= 2


async def test_an_exception_in_the_scorer_is_raised_with_its_traceback() -> None:
    """Field report 10."""
    async with pool_of("raising") as pool:
        with pytest.raises(PluginFailed, match="example_scorers:raising raised ValueError: no such answer") as caught:
            await pool.submit("no such answer")
        assert "in raising" in caught.value.detail
        with pytest.raises(PluginFailed, match="x{400}"):
            await pool.submit("x" * 10_000_000)


@pytest.mark.parametrize("function", ["nothing", "not_a_number"])
async def test_a_reward_that_is_no_finite_number_is_an_error(function: str) -> None:
    async with pool_of(function) as pool:
        with pytest.raises(PluginFailed, match="TypeError"):
            await pool.submit()


@pytest.mark.parametrize("scorer", ["no_such_module:score", "example_scorers:no_such_function"])
async def test_a_scorer_that_cannot_be_imported_is_one_clear_error(scorer: str) -> None:
    pool = ScoringPool(scorer)
    for _ in range(2):
        with pytest.raises(PluginLoadError, match=rf"scorer {scorer} can't be started: \w+Error: .*no_such"):
            await pool.submit()
    await pool.close()


async def test_a_hanging_scorer_is_killed_and_replaced() -> None:
    """Field report 42."""
    async with pool_of("hang", timeout=0.5, workers=1) as pool:
        assert await pool.submit() == Score(0.0, "scorer killed after 0.5 s")
        assert await pool.submit() == Score(0.0, "scorer killed after 0.5 s")


async def test_a_scorer_deaf_to_signals_is_killed_too() -> None:
    async with pool_of("deaf", timeout=1.0) as pool:
        assert (await pool.submit(600)).failure == "scorer killed after 1 s"
        assert await pool.submit(0) == Score(1.0)


async def test_killing_a_scorer_takes_its_children_along(tmp_path: Path) -> None:
    async with pool_of("hang_with_child", timeout=2.0) as pool:
        scoring = asyncio.create_task(pool.submit(str(tmp_path / "ids")))
        ids = [int(word) for word in (await file_written(tmp_path / "ids")).split()]
        assert (await scoring).failure
    assert len(ids) == 2 and all(gone(process_id) for process_id in ids)


@pytest.mark.parametrize(
    ("function", "arguments", "failure"),
    [
        ("segfault", (), "scorer crashed (SIGSEGV)"),
        ("leave", (3,), "scorer exited with code 3"),
        ("recurse", (), "scorer ran out of stack"),
        ("eat_memory", (), "scorer ran out of memory"),
        ("forge", (), "scorer exited with code 0"),
    ],
)
async def test_a_crash_is_reward_0_with_its_reason(function: str, arguments: tuple[int, ...], failure: str) -> None:
    async with pool_of(function, workers=1, timeout=60.0, memory_bytes=512 << 20) as pool:
        for _ in range(2):
            score = await pool.submit(*arguments)
            assert score.reward == 0.0
            assert score.failure in {failure, "scorer hung up"}


async def test_cpu_time_is_bounded_even_if_the_pool_is_frozen(tmp_path: Path) -> None:
    """The kernel ends a scoring that nobody can kill: its process may burn the deadline and a second more."""
    async with pool_of("hang", timeout=1.0) as pool:
        scoring = asyncio.create_task(pool.submit(str(tmp_path / "id")))
        process_id = int(await file_written(tmp_path / "id"))
        deadline = time.monotonic() + 60
        while psutil.Process(process_id).status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
            time.sleep(0.05)  # noqa: ASYNC251  (blocking the loop is the point)
        assert psutil.Process(process_id).status() == psutil.STATUS_ZOMBIE
        assert (await scoring).reward == 0.0


async def test_a_worker_has_limits_and_no_input() -> None:
    async with pool_of("limits", timeout=30.0, memory_bytes=1 << 30) as pool:
        assert await pool.submit() == Score(1.0)
    async with pool_of("read_input") as pool:
        assert await pool.submit() == Score(0.0)


async def test_no_secret_is_in_a_workers_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    monkeypatch.setenv("HF_TOKEN", "secret")
    async with pool_of("variables") as pool:
        with pytest.raises(PluginFailed) as caught:
            await pool.submit()
    seen = set(str(caught.value).split("LookupError: ")[1].strip("'\"").split())
    assert "OMP_NUM_THREADS" in seen
    assert not {"WANDB_API_KEY", "HF_TOKEN", "HOME"} & seen


async def test_closing_is_prompt_with_a_slow_scorer_in_flight(tmp_path: Path) -> None:
    """Field report 18."""
    async with pool_of("hang", timeout=600.0, workers=1) as pool:
        in_flight = asyncio.create_task(pool.submit(str(tmp_path / "id")))
        waiting = [asyncio.create_task(pool.submit()) for _ in range(5)]
        process_id = int(await file_written(tmp_path / "id"))
        async with asyncio.timeout(30):
            await pool.close()
            answers = await asyncio.gather(in_flight, *waiting, return_exceptions=True)
        assert [type(answer) for answer in answers] == [Stopped] * 6
        assert not psutil.pid_exists(process_id)
        with pytest.raises(Stopped):
            await pool.submit()


async def test_closing_while_a_worker_starts() -> None:
    """Field report 19."""
    async with pool_of("process_id") as pool:
        starting = asyncio.create_task(pool.submit())
        await asyncio.sleep(0)
        await pool.close()
        with pytest.raises(Stopped):
            await starting


async def test_a_cancelled_scoring_never_answers_another(tmp_path: Path) -> None:
    async with pool_of("deaf", workers=1, timeout=600.0) as pool:
        assert await pool.submit(0) == Score(1.0)
        slow = asyncio.create_task(pool.submit(600))
        await asyncio.sleep(0.1)
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        assert await pool.submit(0) == Score(1.0)


async def test_a_worker_killed_while_idle_costs_nobody_a_reward() -> None:
    async with pool_of("process_id", workers=1) as pool:
        first = int((await pool.submit()).reward)
        os.kill(first, signal.SIGKILL)
        assert gone(first)
        assert (await pool.submit()).failure == ""


def run_in_thread(work: Callable[[], Any]) -> Any:
    """Return what `work()` gives in a thread that is not the main one."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join(timeout=120)
    return results[0]


@pytest.mark.parametrize("kind", ["asyncio", "uvloop"])
def test_a_loop_in_another_thread_scores_and_kills(kind: str) -> None:
    """Field report 42: off the main thread, where a timeout by signal does nothing."""
    factory = asyncio.new_event_loop if kind == "asyncio" else pytest.importorskip("uvloop").new_event_loop

    async def both() -> list[Score]:
        async with pool_of("equal") as quick, pool_of("hang", timeout=0.5) as slow:
            return list(await asyncio.gather(quick.submit("1", "1"), slow.submit()))

    def work() -> list[Score]:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(both())

    assert run_in_thread(work) == [Score(1.0), Score(0.0, "scorer killed after 0.5 s")]


def test_workers_die_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    script = textwrap.dedent(
        f"""
        import asyncio, sys
        sys.path.insert(0, {str(HERE)!r})
        from asyncrl.rollout.scoring import ScoringPool

        async def main():
            idle = ScoringPool("example_scorers:process_id")
            print(int((await idle.submit()).reward), flush=True)
            await ScoringPool("example_scorers:hang", timeout=600).submit({str(tmp_path / "id")!r})

        asyncio.run(main())
        """
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        idle = int(parent.stdout.readline())
        busy = int(asyncio.run(file_written(tmp_path / "id")))
        parent.kill()
    assert gone(idle) and gone(busy)

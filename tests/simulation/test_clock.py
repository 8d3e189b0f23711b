"""Time jumps, order holds, and a deadlock is an error."""

from __future__ import annotations

import asyncio

import pytest
from asyncrl.errors import DeadlineExceeded
from asyncrl.simulation.clock import run_virtual


def now() -> float:
    return asyncio.get_running_loop().time()


def test_a_year_passes_at_once() -> None:
    async def main() -> float:
        await asyncio.sleep(365 * 24 * 3600)
        return now()

    assert run_virtual(main()) == 365 * 24 * 3600


def test_time_is_exactly_that_of_the_timer() -> None:
    async def main() -> list[float]:
        times = []
        for _ in range(10):
            await asyncio.sleep(0.1)
            times.append(now())
        return times

    times = run_virtual(main())
    expected = 0.0
    for moment in times:
        expected += 0.1
        assert moment == expected


def test_time_stands_still_while_work_is_done() -> None:
    async def main() -> float:
        for _ in range(1000):
            await asyncio.sleep(0)
        return now()

    assert run_virtual(main()) == 0.0


def test_timers_fire_in_the_order_of_their_times() -> None:
    async def main() -> list[int]:
        seen: list[int] = []

        async def wait(seconds: int) -> None:
            await asyncio.sleep(seconds)
            seen.append(seconds)

        await asyncio.gather(*(wait(seconds) for seconds in (5, 1, 4, 2, 3)))
        return seen

    assert run_virtual(main()) == [1, 2, 3, 4, 5]


def test_a_deadlock_names_who_waits() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(DeadlineExceeded, match=r"deadlock at 0 virtual seconds.*main"):
        run_virtual(main())


def test_a_limit_ends_what_would_go_on_for_ever() -> None:
    async def main() -> None:
        for _ in range(1000):
            await asyncio.sleep(7)

    with pytest.raises(DeadlineExceeded, match="still running after 100 virtual seconds"):
        run_virtual(main(), limit=100)


def test_tasks_that_are_left_are_cancelled_and_may_take_their_time() -> None:
    ended = []

    async def slow_to_leave() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(60)
            ended.append(now())

    async def main() -> None:
        task = asyncio.create_task(slow_to_leave())
        await asyncio.sleep(1)
        assert not task.done()

    run_virtual(main(), limit=10_000)
    assert ended == [61.0]


@pytest.mark.parametrize("late", [1e9, 1e12, 1e300])
def test_a_timer_is_due_however_late_it_is(late: float) -> None:
    async def two() -> float:
        await asyncio.sleep(late)
        await asyncio.sleep(1.0)
        return asyncio.get_running_loop().time()

    assert run_virtual(two()) == late + 1.0

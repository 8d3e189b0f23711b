"""The scripted engine keeps its script: latencies, slots, versions and faults are exact."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import numpy as np
import pytest
from asyncrl.errors import EngineFault
from asyncrl.rollout.engine import Engine, GenerateRequest
from asyncrl.samples import Completion, SamplingParams
from asyncrl.simulation.clock import run_virtual
from asyncrl.simulation.engine import Plan, ScriptedEngine
from asyncrl.simulation.lengths import ConstantLengths
from asyncrl.simulation.script import LengthScript, NumberedRequest

REQUEST = GenerateRequest(np.zeros(1, np.int32), SamplingParams(64), 0)


def now() -> float:
    return asyncio.get_running_loop().time()


async def timed(engine: ScriptedEngine) -> tuple[float, Completion]:
    completion = await engine.generate(REQUEST)
    return now(), completion


async def after(seconds: float, action: Coroutine[Any, Any, Any]) -> None:
    await asyncio.sleep(seconds)
    await action


def test_it_is_an_engine() -> None:
    engine: Engine = ScriptedEngine()
    assert engine.alive and engine.in_flight == 0


def test_a_request_takes_what_its_plan_says() -> None:
    async def main() -> tuple[float, Completion]:
        return await timed(ScriptedEngine(script=lambda request, number: Plan(tokens=10, first=2.0, per_token=0.5)))

    ended, completion = run_virtual(main())
    assert ended == 7.0
    assert len(completion.token_ids) == len(completion.logprobs) == 10
    assert (completion.spans, completion.finish_reason, completion.admitted) == (((0, 10),), "stop", 0)


def test_more_requests_than_slots_queue_in_order() -> None:
    async def main() -> list[float]:
        engine = ScriptedEngine(slots=2, script=lambda request, number: Plan(tokens=8, per_token=0.125))
        results = await asyncio.gather(*(timed(engine) for _ in range(5)))
        assert engine.most_in_flight == 5
        assert engine.busy_seconds == 3.0
        return [ended for ended, _ in results]

    assert run_virtual(main()) == [1.0, 1.0, 2.0, 2.0, 3.0]


def test_the_oldest_version_is_the_one_at_admission() -> None:
    """Field report 1."""

    async def publish(engine: ScriptedEngine) -> None:
        engine.publish(7)

    async def main() -> Completion:
        engine = ScriptedEngine(script=lambda request, number: Plan(tokens=8, per_token=0.125))
        engine.version = 3
        (_, completion), _ = await asyncio.gather(timed(engine), after(0.375, publish(engine)))
        return completion

    completion = run_virtual(main())
    assert completion.spans == ((3, 3), (7, 5))
    assert completion.admitted == 3


@pytest.mark.parametrize(("mode", "ended"), [("in_place", 7.0), ("retract", 9.0)])
def test_a_pause_stops_time_and_a_retracted_request_begins_anew(mode: Any, ended: float) -> None:
    async def publish(engine: ScriptedEngine) -> None:
        await engine.pause(mode)
        await asyncio.sleep(1.0)
        engine.publish(1)
        await engine.resume()

    async def main() -> tuple[float, Completion]:
        engine = ScriptedEngine(script=lambda request, number: Plan(tokens=4, first=2.0, per_token=1.0))
        result, _ = await asyncio.gather(timed(engine), after(4.0, publish(engine)))
        return result

    moment, completion = run_virtual(main())
    assert moment == ended
    assert completion.spans == ((0, 2), (1, 2))


def test_faults_come_when_they_are_scripted() -> None:
    plans = [Plan(fault="error", fault_after=2), Plan(fault="abort", fault_after=3), Plan(fault="hang"), Plan()]

    async def main() -> None:
        engine = ScriptedEngine(script=lambda request, number: plans[number], request_timeout=50.0)
        with pytest.raises(EngineFault, match="500"):
            await engine.generate(REQUEST)
        assert now() == 0.25
        aborted = await engine.generate(REQUEST)
        assert (aborted.finish_reason, len(aborted.token_ids)) == ("abort", 3)
        began = now()
        with pytest.raises(EngineFault, match="no answer for 50 s"):
            await engine.generate(REQUEST)
        assert now() - began == 50.0
        assert (await engine.generate(REQUEST)).finish_reason == "stop"
        assert engine.in_flight == 0

    run_virtual(main())


def test_death_takes_everything_in_flight_and_a_revived_engine_answers_again() -> None:
    async def main() -> None:
        engine = ScriptedEngine(slots=1, script=lambda request, number: Plan(fault="death" if number == 0 else "", fault_after=1))
        results = await asyncio.gather(*(engine.generate(REQUEST) for _ in range(3)), return_exceptions=True)
        assert [type(result) for result in results] == [EngineFault] * 3
        assert not engine.alive and not await engine.healthy()
        with pytest.raises(EngineFault, match="dead"):
            await engine.generate(REQUEST)
        engine.revive()
        assert await engine.healthy()
        assert (await engine.generate(REQUEST)).finish_reason == "stop"

    run_virtual(main())


def test_a_cancelled_request_frees_its_slot() -> None:
    async def main() -> float:
        engine = ScriptedEngine(slots=1, script=lambda request, number: Plan(tokens=8, per_token=1.0))
        first = asyncio.ensure_future(engine.generate(REQUEST))
        second = asyncio.ensure_future(timed(engine))
        await asyncio.sleep(1.0)
        first.cancel()
        ended, _ = await second
        assert engine.in_flight == 0
        return ended

    assert run_virtual(main()) == 9.0


def test_a_slow_engine_takes_longer() -> None:
    async def main() -> float:
        engine = ScriptedEngine(script=lambda request, number: Plan(tokens=8, per_token=1.0))
        engine.slowdown = 3.0
        return (await timed(engine))[0]

    assert run_virtual(main()) == 24.0


def test_speed_may_depend_on_how_many_generate() -> None:
    async def main() -> list[float]:
        engine = ScriptedEngine(script=lambda request, number: Plan(tokens=8, per_token=0.125), load_factor=float)
        first = asyncio.ensure_future(timed(engine))
        await asyncio.sleep(0.5)
        second, _ = await timed(engine), await first
        return [first.result()[0], second[0]]

    assert run_virtual(main()) == [1.5, 2.0]  # half a second alone, then two share until the first has had its second


def test_a_hung_engine_answers_nothing_until_it_is_revived() -> None:
    """Field report 11."""

    async def main() -> float:
        engine = ScriptedEngine(request_timeout=50.0)
        asked = asyncio.ensure_future(timed(engine))
        await asyncio.sleep(0.5)
        engine.hang()
        assert not await engine.healthy()
        late = asyncio.ensure_future(engine.generate(REQUEST))
        await asyncio.sleep(20.0)
        assert not asked.done() and not late.done()
        engine.revive()
        assert await engine.healthy()
        await late
        return (await asked)[0]

    assert run_virtual(main()) == 21.0


def test_slot_seconds_are_those_in_which_slots_generated() -> None:
    async def main() -> float:
        engine = ScriptedEngine(slots=2, script=lambda request, number: Plan(tokens=8, per_token=0.125))
        asked = [asyncio.ensure_future(timed(engine)) for _ in range(3)]
        await asyncio.sleep(0.5)
        await engine.pause("in_place")
        await asyncio.sleep(7.0)
        await engine.resume()
        await asyncio.gather(*asked)
        return engine.slot_seconds

    assert run_virtual(main()) == 3.0


def test_answers_share_their_arrays_and_begin_with_the_samples_number() -> None:
    async def main() -> list[Completion]:
        engine = ScriptedEngine(vocab_size=10)
        requests = [NumberedRequest(REQUEST.token_ids, REQUEST.params, 0, index=index) for index in (4, 9)]
        return [await engine.generate(request) for request in requests]

    first, second = run_virtual(main())
    assert (list(first.token_ids), second.token_ids[0]) == ([4, 5, 6, 7, 8, 9, 0, 1], 9)
    assert np.shares_memory(first.token_ids, second.token_ids) and not first.token_ids.flags.writeable


def test_a_request_that_knows_its_length_has_it_whatever_the_law_says() -> None:
    script = LengthScript(ConstantLengths(7), per_token=0.5)
    known = GenerateRequest(REQUEST.token_ids, SamplingParams(31, ignore_eos=True), 0)
    assert (script(REQUEST, 0).tokens, script(known, 0).tokens, script(known, 0).per_token) == (7, 31, 0.5)

"""The rollout actor dies while a point is evaluated: the point has one record, its snapshot goes, and the run generates again."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path

import pytest
from asyncrl.evaluation.dispatcher import EvalDispatcher
from asyncrl.evaluation.records import Checkpoint, EvalRecord, EvalResult
from asyncrl.evaluation.snapshots import ExportedSnapshots, Snapshots
from asyncrl.training.interfaces import Exported
from asyncrl.training.snapshots import mark_complete
from hypothesis import event, given, settings
from hypothesis import strategies as st
from mortal import Death, World
from simulated import assert_balanced, facts, host

STEPS = 6
DUE = [0, 2, 4, 6]


pytestmark = pytest.mark.usefixtures("quiet")


def dispatcher(evaluate, snapshots: Snapshots, records: list[EvalRecord], *, blocking: bool) -> EvalDispatcher:
    return EvalDispatcher(
        interval=2,
        before=True,
        evaluate=evaluate,
        record=records.append,
        snapshots=snapshots,
        blocking=blocking,
        wait_warning=500.0,
    )


def check(world: World) -> None:
    """Training came to its end, and its books are whole."""
    assert len(world.batches) == STEPS
    assert_balanced(world.books)
    assert world.books["trained"] == STEPS * world.facts.batch_size
    assert not any(engine.paused for engine in world.engines)


DEATHS = st.lists(
    st.builds(Death, st.sampled_from(["evaluate", "evaluate", "take_batch", "weights"]), st.integers(1, 4), st.booleans()),
    max_size=3,
)
TIMES = st.lists(st.integers(0, 600).map(lambda tenths: 3.2 + tenths / 10), max_size=3)


@pytest.mark.parametrize("scheduler", ["sample", "lockstep"])
@settings(max_examples=10, derandomize=True, deadline=None)
@given(fatal=DEATHS, times=TIMES, seed=st.integers(0, 100))
def test_a_point_on_the_rollout_engines_is_recorded_once_whenever_their_actor_dies(
    scheduler: str, fatal: list[Death], times: list[float], seed: int
) -> None:
    """Backend `shared`: the loop waits for it, and submission is paused. The actor that comes goes on submitting."""
    records: list[EvalRecord] = []
    run = facts(steps=STEPS)
    world = World(
        run,
        lambda: host(run, ("scheduler", scheduler, {})),
        seed,
        fatal=fatal,
        times=times,
        make_evals=lambda world: dispatcher(world.handle.evaluate, Snapshots(), records, blocking=True),
    ).run()
    check(world)
    assert [record.step for record in records] == [record.version for record in records] == DUE
    for record in records:
        assert record.skipped in ("", "crashed")
        if record.skipped:
            event("a point was lost")
            assert "its process died" in record.detail["why"]
        else:
            assert (record.sets["held-out"].version_mean, record.sets["held-out"].failed) == (record.version, 0.0)


@settings(max_examples=10, derandomize=True, deadline=None)
@given(fatal=DEATHS, times=TIMES, seconds=st.lists(st.integers(0, 150).map(lambda tenths: tenths / 10), min_size=4, max_size=4))
def test_a_point_on_engines_of_the_backends_own_has_its_result_whenever_the_rollout_actor_dies(
    fatal: list[Death], times: list[float], seconds: list[float]
) -> None:
    """Backend `fleet`: the evaluator and its engines are none of the actor's, and each snapshot goes when its point has a record."""
    records: list[EvalRecord] = []
    run = facts(steps=STEPS)

    class Trainer:
        async def export(self, directory: Path) -> Exported:
            directory.mkdir(parents=True)
            (directory / "config.json").touch()
            mark_complete(directory)
            return Exported(directory, 1, "digest")

    async def remove(directory: Path) -> None:
        shutil.rmtree(directory)

    async def evaluate(checkpoint: Checkpoint) -> EvalResult:
        assert (checkpoint.require() / "config.json").is_file()
        await asyncio.sleep(seconds[DUE.index(checkpoint.step)])
        return EvalResult({})

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "model").mkdir()
        (place / "model" / "config.json").touch()
        snapshots = ExportedSnapshots(Trainer(), place / "staging", place / "model", keep=0, remove=remove)
        make = lambda world: dispatcher(evaluate, snapshots, records, blocking=False)  # noqa: E731
        check(World(run, lambda: host(run), 1, fatal=fatal, times=times, make_evals=make).run())
        assert [path.name for path in place.iterdir()] == ["model"]
    assert [(record.step, record.version, record.skipped) for record in records] == [(step, step, "") for step in DUE]


@pytest.mark.parametrize("answered", [False, True])
def test_a_result_that_was_on_its_way_is_lost_with_the_actor(answered: bool) -> None:
    records: list[EvalRecord] = []
    run = facts(steps=STEPS)
    world = World(
        run,
        lambda: host(run),
        1,
        fatal=[Death("evaluate", 2, answered)],
        make_evals=lambda world: dispatcher(world.handle.evaluate, Snapshots(), records, blocking=True),
    ).run()
    check(world)
    assert [(record.step, record.skipped) for record in records] == [(0, ""), (2, "crashed"), (4, ""), (6, "")]
    assert world.restarts.used == 1

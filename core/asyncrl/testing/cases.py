"""What hypothesis draws: groups and loads as core may show them to a plugin, and how many of them a rule is tried with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from asyncrl.rollout.schedule import LoadView
from asyncrl.testing.groups import make_group


def for_all(examples: int, **strategies: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Try a rule with many cases: the same ones every time, however slow the machine, and the smallest that breaks it is told.

    A plugin whose answers change from call to call may break a rule once and keep it when hypothesis looks again: it fails all the same.
    """

    def decorate(rule: Callable[..., None]) -> Callable[[], None]:
        failures: list[BaseException] = []

        @settings(
            max_examples=examples,
            derandomize=True,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        @given(**strategies)
        def tried(**drawn: Any) -> None:
            try:
                rule(**drawn)
            except pytest.fail.Exception as failure:
                failures.append(failure)
                raise

        def run() -> None:
            try:
                tried()
            except BaseException:
                if not failures:
                    raise
            if failures:
                raise failures[-1] from None

        return run

    return decorate


GROUPS = st.builds(
    make_group,
    prompt_id=st.integers(0, 10**9),
    oldest=st.integers(0, 40),
    newest=st.none() | st.integers(41, 50),
    rewards=st.lists(st.sampled_from([0.0, 0.0, 0.5, 1.0, -1.0]), min_size=4, max_size=4),
    tokens=st.integers(1, 20),
)
"""Groups of four samples as they may reach the gate; rewards are often all alike."""


@st.composite
def loads(draw: st.DrawFn) -> LoadView:
    """Loads that core may show to a scheduler: what is in flight fits the cap, and every group is in one place."""
    group_size, batch_size = draw(st.integers(1, 16)), draw(st.integers(1, 64))
    cap = group_size + draw(st.integers(0, 512))
    samples = cap - draw(st.integers(0, min(cap, group_size)) | st.integers(0, cap))
    groups = draw(st.integers(-(-samples // group_size), samples + 8))
    buffered, in_batch = draw(st.integers(0, 128)), draw(st.integers(0, batch_size))
    trained = draw(st.integers(0, 1000)) * batch_size
    steps_left = draw(st.integers(1, 1000))
    return LoadView(
        group_size=group_size,
        batch_size=batch_size,
        max_concurrent_samples=cap,
        samples_in_flight=samples,
        groups_in_flight=groups,
        groups_buffered=buffered,
        groups_in_batch=in_batch,
        groups_trained=trained,
        groups_issued=trained + groups + buffered + in_batch + draw(st.integers(0, 50)),
        trainer_waiting=draw(st.booleans()),
        version=draw(st.integers(0, 1000)),
        steps_left=steps_left,
        batches_to_deadline=draw(st.integers(1, steps_left)),
    )

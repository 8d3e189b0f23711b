"""What hypothesis draws: groups and loads as core may show them to a plugin, and how many of them a rule is tried with."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from asyncrl.rollout.schedule import LoadView
from asyncrl.testing.groups import make_group


def tried(examples: int) -> settings:
    """Return settings under which a rule gives the same answer every time, however slow the machine."""
    return settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )


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
    samples = draw(st.integers(0, cap))
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

"""The engine that is chosen is the one that a look at each would find."""

from __future__ import annotations

from dataclasses import dataclass

from asyncrl.rollout.least_loaded import LeastLoaded
from hypothesis import given
from hypothesis import strategies as st


@dataclass
class Loaded:
    """What the choice looks at of an engine."""

    alive: bool = True
    in_flight: int = 0


def by_a_look_at_each(engines: list[Loaded], affinity: int, avoid: int) -> int:
    count = len(engines)
    places = [(affinity + offset) % count for offset in range(count)]
    living = [place for place in places if engines[place].alive and place != avoid]
    if living:
        return min(living, key=lambda place: engines[place].in_flight)
    return avoid if avoid >= 0 and engines[avoid].alive else -1


ACTS = st.sampled_from(["send", "send", "send", "end", "end", "die", "revive", "append", "send elsewhere"])


@given(count=st.integers(1, 6), acts=st.lists(st.tuples(ACTS, st.integers(0, 50), st.integers(-1, 5)), max_size=60))
def test_it_is_the_one_that_a_look_at_each_would_find(count: int, acts: list[tuple[str, int, int]]) -> None:
    engines = [Loaded() for _ in range(count)]
    chosen = LeastLoaded(engines)  # type: ignore[arg-type]
    for act, number, avoid in acts:
        place = number % len(engines)
        engine = engines[place]
        if act == "send":
            avoid = min(avoid, len(engines) - 1)
            place = chosen.choose(number, avoid)
            assert place == by_a_look_at_each(engines, number, avoid)
            if place >= 0:
                chosen.starts(place)
                engines[place].in_flight += 1
        elif act == "end" and engine.in_flight:
            engine.in_flight -= 1
            chosen.changed(place)
        elif act == "die":
            engine.alive = False
        elif act == "revive":
            engine.alive = True
        elif act == "append":
            engines.append(Loaded())
        elif act == "send elsewhere":
            engine.in_flight += 1


def test_without_engines_there_is_none() -> None:
    assert LeastLoaded([]).choose(3) == -1

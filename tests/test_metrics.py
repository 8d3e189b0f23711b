"""Declared metrics: what a class of metrics may hold, and what is refused because no logger would ever see it."""

from __future__ import annotations

import pytest
from asyncrl.metrics import Counter, Gauge, MetricSet

STEPS = Counter("Steps", unit="steps")


def declare(bases: tuple[type, ...] = (MetricSet,), **attributes: object) -> type:
    return type("Mine", bases, attributes)


@pytest.mark.parametrize(
    ("attributes", "fault"),
    [
        ({"x": 3}, r"Mine\.x is 3 \(int\), which is no metric; a metric is an object such as Counter\("),
        ({"x": None}, r"Mine\.x is None \(NoneType\), which is no metric"),
        ({"x": (STEPS,)}, r"Mine\.x is \(<.*Counter.*>,\) \(tuple\), which is no metric"),
        ({"x": Gauge}, r"Mine\.x is the kind Gauge itself; a metric is an object"),
        ({"__annotations__": {"x": "Gauge"}}, r"Mine\.x has a type but no value"),
        ({"drain": STEPS}, r"Mine\.drain is a name of every MetricSet"),
        ({"prefix": STEPS}, r"Mine\.prefix is a name of every MetricSet"),
        ({"declared": STEPS}, r"Mine\.declared is a name of every MetricSet"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_an_attribute_that_no_logger_would_see_is_refused_when_the_class_is_made(
    attributes: dict[str, object], fault: str
) -> None:
    with pytest.raises(TypeError, match=fault):
        declare(**attributes)


def test_one_that_comes_from_another_class_is_refused_too() -> None:
    class Shared:
        x = 3

    with pytest.raises(TypeError, match=r"Mine\.x is 3"):
        declare((Shared, MetricSet), steps=STEPS)


def test_a_metric_may_not_be_put_out_by_a_class_below() -> None:
    with pytest.raises(TypeError, match=r"Mine\.steps is None"):
        declare((declare(steps=STEPS),), steps=None)


def test_private_names_methods_and_inherited_metrics_may_be_there() -> None:
    class Base(MetricSet):
        """With a doc string."""

        steps: Counter = Counter("Steps", unit="steps")
        _limit = 3
        _note: str

        def count(self) -> None:
            self.steps.add(1)

        @staticmethod
        def half(value: float) -> float:
            return value / 2

        @property
        def limit(self) -> int:
            return self._limit

    class Mine(Base):
        load = Gauge("Load", unit="ratio")

    metrics = Mine("mine")
    metrics.count()
    assert sorted(one.name for one in Mine.declared("mine")) == ["mine/load", "mine/steps"]
    assert metrics.drain() == {"mine/steps": {"": 1}}

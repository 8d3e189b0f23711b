"""Declared metrics: a typed attribute is the only way to emit one.

A `MetricSet` subclass declares; an instance records; `drain()` takes what was recorded since the last call as plain JSON
(a `Delta`), which travels to the controller, where a `Registry` adds deltas up and says what to log on which axis.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from types import FunctionType
from typing import Any, ClassVar, TypeAlias, TypeVar, overload

Delta: TypeAlias = dict[str, Any]
"""{full metric name: recorded state}: JSON-able, small."""


class Axis(str, Enum):
    """What a metric is plotted against. Each is a metric of its own; no logger is ever given a global step."""

    TRAIN_STEP = "train_step"
    WEIGHT_VERSION = "weight_version"
    EVAL_STEP = "eval_step"
    WALL_SECONDS = "wall_seconds"


@dataclass(frozen=True)
class Declared:
    """A metric as documentation, `plugins info` and loggers see it."""

    name: str
    kind: str
    help: str
    unit: str
    axis: Axis
    label: str


class Metric:
    """Base of the kinds. Declared as a class attribute of a `MetricSet`; each instance of the set gets its own.

    Args:
        help: one line on what it measures.
        unit: ``groups``, ``tokens``, ``seconds``, ``ratio``, …
        axis: what it is plotted against.
        label: name of a label; each label value is then a series of its own, named ``NAME/VALUE``.
    """

    kind: ClassVar[str] = ""

    def __init__(self, help: str, *, unit: str, axis: Axis = Axis.TRAIN_STEP, label: str = "") -> None:
        self.help = help
        self.unit = unit
        self.axis = axis
        self.label = label
        self._state: dict[str, Any] = {}

    def _clone(self: _M) -> _M:
        return type(self)(self.help, unit=self.unit, axis=self.axis, label=self.label)

    def _key(self, label: str) -> str:
        if bool(label) != bool(self.label):
            raise TypeError(f"metric {self.help!r}: " + ("needs a label" if self.label else "takes no label"))
        return label

    def drain(self) -> dict[str, Any]:
        """Take what was recorded, by label ('' when unlabelled)."""
        state, self._state = self._state, {}
        return state

    @staticmethod
    def merge(old: Any, new: Any) -> Any:
        """Fold a later delta into an earlier one."""
        raise TypeError

    @staticmethod
    def values(name: str, state: Any) -> dict[str, float]:
        """What to log for a folded state."""
        raise TypeError


_M = TypeVar("_M", bound=Metric)


class Counter(Metric):
    """A sum over the run so far."""

    kind = "counter"
    lasting: ClassVar[bool] = True

    def add(self, amount: float = 1, label: str = "") -> None:
        key = self._key(label)
        self._state[key] = self._state.get(key, 0) + amount

    @staticmethod
    def merge(old: Any, new: Any) -> Any:
        return old + new

    @staticmethod
    def values(name: str, state: Any) -> dict[str, float]:
        return {name: state}


class Gauge(Metric):
    """The latest value."""

    kind = "gauge"
    lasting: ClassVar[bool] = False

    def set(self, value: float, label: str = "") -> None:
        self._state[self._key(label)] = value

    @staticmethod
    def merge(old: Any, new: Any) -> Any:
        return new

    @staticmethod
    def values(name: str, state: Any) -> dict[str, float]:
        return {name: state}


class Distribution(Metric):
    """Mean, minimum and maximum of the values since the last record; logged as NAME/mean, NAME/min and NAME/max."""

    kind = "distribution"
    lasting: ClassVar[bool] = False

    def observe(self, value: float, label: str = "") -> None:
        key = self._key(label)
        old = self._state.get(key)
        if old is None:
            self._state[key] = [1, value, value, value]
        else:
            old[0] += 1
            old[1] += value
            if value < old[2]:
                old[2] = value
            if value > old[3]:
                old[3] = value

    def observe_sum(self, count: int, total: float, low: float, high: float, label: str = "") -> None:
        """Record `count` values at once by their running sums."""
        if count > 0:
            key = self._key(label)
            old = self._state.get(key)
            if old is None:
                self._state[key] = [count, total, low, high]
                return
            old[0] += count
            old[1] += total
            if low < old[2]:
                old[2] = low
            if high > old[3]:
                old[3] = high

    @staticmethod
    def merge(old: Any, new: Any) -> Any:
        return [old[0] + new[0], old[1] + new[1], min(old[2], new[2]), max(old[3], new[3])]

    @staticmethod
    def values(name: str, state: Any) -> dict[str, float]:
        return {f"{name}/mean": state[1] / state[0], f"{name}/min": state[2], f"{name}/max": state[3]}


KINDS: dict[str, type[Counter] | type[Gauge] | type[Distribution]] = {
    "counter": Counter,
    "gauge": Gauge,
    "distribution": Distribution,
}


class MetricSet:
    """A plugin's or a core module's metrics: subclass with `Counter`, `Gauge` and `Distribution` attributes.

    Methods and private names may stand beside them. Any other attribute is refused with a TypeError when the class is made: it would
    never reach a logger.

    Args:
        prefix: prepended to each attribute's name, such as ``buffer/fifo``.
    """

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        for kind in cls.__mro__:
            if kind is not object and (kind is cls or not issubclass(kind, MetricSet)):
                for fault in _declaration_faults(kind):
                    raise TypeError(f"{cls.__qualname__}.{fault}")

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._own: dict[str, Metric] = {}
        for name, metric in self._declared():
            own = metric._clone()
            self._own[f"{prefix}/{name}"] = own
            object.__setattr__(self, name, own)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or name == "prefix":
            object.__setattr__(self, name, value)
        else:
            raise AttributeError(f"{type(self).__name__} declares no metric by assignment; declare {name!r} in the class")

    @classmethod
    def _declared(cls) -> Iterator[tuple[str, Metric]]:
        seen: set[str] = set()
        for klass in cls.__mro__:
            for name, value in vars(klass).items():
                if isinstance(value, Metric) and name not in seen:
                    seen.add(name)
                    yield name, value

    @classmethod
    def declared(cls, prefix: str) -> list[Declared]:
        """What an instance with this prefix can emit."""
        return [
            Declared(f"{prefix}/{name}", metric.kind, metric.help, metric.unit, metric.axis, metric.label)
            for name, metric in cls._declared()
        ]

    def drain(self) -> Delta:
        """Take everything recorded since the last call: {name: {label: state}}."""
        return {name: state for name, metric in self._own.items() if (state := metric.drain())}


def _declaration_faults(kind: type) -> Iterator[str]:
    """What a class declares that is no metric, as ``NAME is …``."""
    right = 'a metric is an object such as Counter("what it counts", unit="groups")'
    for name, value in vars(kind).items():
        if isinstance(value, Metric) and (name == "prefix" or hasattr(MetricSet, name)):
            yield f"{name} is a name of every MetricSet: the metric needs another one"
        elif isinstance(value, type) and issubclass(value, Metric) and not name.startswith("_"):
            yield f"{name} is the kind {value.__name__} itself; {right}"
        elif not name.startswith("_") and not isinstance(value, Metric | FunctionType | classmethod | staticmethod | property):
            yield f"{name} is {_shown(value)}, which is no metric; {right}, and any other name begins with an underscore"
    for name in vars(kind).get("__annotations__", {}):
        if not name.startswith("_") and name not in vars(kind):
            yield f"{name} has a type but no value; {right}"


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else f'{text[:57]}…'} ({type(value).__name__})"


@overload
def merge_deltas(deltas: Iterable[Delta], declared: Mapping[str, Declared]) -> Delta: ...
@overload
def merge_deltas(deltas: Iterable[Delta], declared: Mapping[str, Declared], into: Delta) -> Delta: ...
def merge_deltas(deltas: Iterable[Delta], declared: Mapping[str, Declared], into: Delta | None = None) -> Delta:
    """Fold deltas, earliest first. Raises KeyError for a name nobody declared."""
    folded: Delta = {} if into is None else into
    for delta in deltas:
        for name, states in delta.items():
            merge = KINDS[declared[name].kind].merge
            mine = folded.setdefault(name, {})
            for label, state in states.items():
                mine[label] = merge(mine[label], state) if label in mine else state
    return folded


class Registry:
    """The controller's view: every declaration, running totals of counters, and what to log for an axis."""

    def __init__(self, declared: Iterable[Declared]) -> None:
        self.declared: dict[str, Declared] = {metric.name: metric for metric in declared}
        self._state: Delta = {}

    def add(self, delta: Delta) -> None:
        """Fold a delta in. Raises KeyError for a name nobody declared."""
        merge_deltas([delta], self.declared, self._state)

    def take(self, axis: Axis) -> dict[str, float]:
        """Return the values to log on `axis`; counters go on counting, everything else starts afresh."""
        values: dict[str, float] = {}
        for name in [name for name in self._state if self.declared[name].axis is axis]:
            kind = KINDS[self.declared[name].kind]
            for label, state in self._state[name].items():
                values.update(kind.values(f"{name}/{label}" if label else name, state))
            if not kind.lasting:
                del self._state[name]
        return values

    def state(self) -> Delta:
        """Return the totals, and what was recorded and not taken yet, as JSON."""
        return copy.deepcopy(self._state)

    def restore(self, state: Delta) -> None:
        """Go on from a former `state`; metrics that nobody declares any more are left out."""
        self.add({name: labels for name, labels in state.items() if name in self.declared})

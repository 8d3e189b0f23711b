"""What each process of a run holds, looked at again and again, and how fast it grows. `make soak` is tools/soak.py."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from live import VICTIMS, Run, processes_with

MIB = 2**20
TENTHS = 10
ALLOWED = {"memory": 8.0, "files": 3.0, "threads": 3.0, "tasks": 8.0}
"""What the second half may grow by: MiB of memory of a process's own, and numbers of the others. Beyond that it is a leak."""
ALLOWED_SHARE = 0.02
"""Of a process's memory, where that is more: an allocator's own noise."""


@dataclass
class Series:
    """One quantity of one process: times in seconds, and values."""

    times: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, at: float, value: float) -> None:
        self.times.append(at)
        self.values.append(value)

    def second_half(self) -> Series:
        """What was seen in the later half of the time."""
        middle = (self.times[0] + self.times[-1]) / 2 if self.times else 0.0
        first = next((index for index, at in enumerate(self.times) if at >= middle), 0)
        return Series(self.times[first:], self.values[first:])

    @property
    def slope(self) -> float:
        """Growth a second by least squares; 0 for fewer than two values."""
        if len(self.times) < 2:
            return 0.0
        mean_time, mean = sum(self.times) / len(self.times), sum(self.values) / len(self.values)
        spread = sum((at - mean_time) ** 2 for at in self.times)
        both = zip(self.times, self.values, strict=True)
        return sum((at - mean_time) * (value - mean) for at, value in both) / spread if spread else 0.0

    def outermost(self, choose: Callable[..., tuple[float, float]]) -> Series:
        """The least (`min`) or greatest (`max`) value of each tenth of the time."""
        length = (self.times[-1] - self.times[0]) / TENTHS or 1.0
        chosen: dict[int, tuple[float, float]] = {}
        for value, at in zip(self.values, self.times, strict=True):
            tenth = min(TENTHS - 1, int((at - self.times[0]) / length))
            chosen[tenth] = choose(chosen.get(tenth, (value, at)), (value, at))
        return Series([at for _, at in chosen.values()], [value for value, _ in chosen.values()])

    @property
    def growth(self) -> float:
        """What slope adds up to over the whole time, of the least or of the greatest values, whichever grow less.

        A leak raises both. What goes up and comes down again, such as connections, raises one of them at most.
        """
        if not self.times:
            return 0.0
        slope = min(self.outermost(min).slope, self.outermost(max).slope)
        return slope * (self.times[-1] - self.times[0])


@dataclass(frozen=True)
class Finding:
    """How one quantity of one process went on in the second half: slope of all values, growth of the outermost ones."""

    process: str
    quantity: str
    mean: float
    slope_an_hour: float
    growth: float
    samples: int

    @property
    def flat(self) -> bool:
        allowed = ALLOWED[self.quantity]
        return self.growth <= (max(allowed, ALLOWED_SHARE * self.mean) if self.quantity == "memory" else allowed)


class Watch:
    """Looks at the processes of a run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._series: dict[tuple[str, str], Series] = defaultdict(Series)
        self._names: dict[int, str] = {}
        self._began = time.time()

    def look(self) -> None:
        """Note what every process holds now."""
        for pid, command in processes_with(self._run.mark):
            name = self._names.setdefault(pid, f"{self._called(pid, command)} {pid}")
            try:
                process = psutil.Process(pid)
                memory = process.memory_full_info().uss / MIB
                held = {"memory": memory, "files": process.num_fds(), "threads": process.num_threads()}
            except (psutil.Error, OSError):  # it has just ended
                continue
            for quantity, value in held.items():
                self._series[name, quantity].add(time.time() - self._began, value)

    def findings(self) -> list[Finding]:
        """Of the processes that lived through the second half, and of the asyncio tasks that the run's observer counted."""
        for at, pid, tasks in self._run.lines("tasks.jsonl"):
            self._series[self._names.get(pid, str(pid)), "tasks"].add(at - self._began, tasks)
        return list(self._found())

    def _found(self) -> Iterator[Finding]:
        longest = max(len(series.times) for series in self._series.values())
        for (process, quantity), series in sorted(self._series.items()):
            half = series.second_half()
            if quantity == "tasks" or len(series.times) > longest / 2:
                mean = sum(half.values) / len(half.values)
                yield Finding(process, quantity, mean, half.slope * 3600, half.growth, len(half.times))

    def _called(self, pid: int, command: bytes) -> str:
        """A process by what it is for the run, or by its program or Python module."""
        if pid == self._run.process.pid:
            return "driver"
        for kind, fits in VICTIMS.items():
            if fits(command):
                return kind
        words = command.decode(errors="replace").split("\0")
        module = (
            words[words.index("-m") + 1] if "-m" in words else next((word for word in words if word.endswith(".py")), words[0])
        )
        return Path(module).name.split(" ")[0]


def table(findings: Sequence[Finding]) -> list[tuple[str, ...]]:
    """Findings as rows, the first one their titles."""
    rows = [("process", "what", "mean", "slope an hour", "growth", "looks", "verdict")]
    for one in findings:
        unit = " MiB" if one.quantity == "memory" else ""
        cells = (f"{one.mean:.1f}{unit}", f"{one.slope_an_hour:+.2f}{unit}", f"{one.growth:+.2f}{unit}", str(one.samples))
        rows.append((one.process, one.quantity, *cells, "flat" if one.flat else "GROWS"))
    return rows

"""What is too large to be simulated is refused before it is built: numbers beyond floats, and more samples than memory holds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from asyncrl.errors import OptionError, ResourceError
from asyncrl.simulation.options import MOST_ENGINES, MOST_SECONDS, MOST_STEPS, MOST_TOKENS

if TYPE_CHECKING:
    from asyncrl.options import RunConfig
    from asyncrl.simulation.scenario import Scenario

BYTES_A_SAMPLE = 8_000
"""Of a sample in flight: its request, its task, its place in the sampler, the books and the buffer. 5,000 were measured."""
BYTES_AN_ENGINE = 4_000
BYTES_A_TOKEN = 48
"""Of the longest sample: all answers are parts of two arrays of twice its length, and making them takes a third."""
MEMORY_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def check_bounds(config: RunConfig) -> None:
    """Refuse an option of the run that training may take and a simulation can't. Raises `OptionError`."""
    core = config.core
    for name, value, most in (
        ("num_engines", core.num_engines, MOST_ENGINES),
        ("steps", core.steps, MOST_STEPS),
        ("max_new_tokens", core.max_new_tokens, MOST_TOKENS),
        ("batch_size", core.batch_size, MOST_TOKENS),
        ("group_size", core.group_size, MOST_TOKENS),
        ("max_concurrent_samples", core.concurrency, MOST_TOKENS**2),
        ("request_timeout", core.request_timeout, MOST_SECONDS),
    ):
        if value > most:
            raise OptionError(f"a simulation takes at most {name} = {most:.0f}", origin=name)


def check_memory(scenario: Scenario) -> None:
    """Refuse what the memory of this machine could not hold. Raises `ResourceError`."""
    core = scenario.config.core
    samples = core.concurrency + core.batch_size * core.group_size
    parts = {
        f"{core.concurrency:,} samples in flight and a batch of {core.batch_size * core.group_size:,}": (
            samples * BYTES_A_SAMPLE,
            "max_concurrent_samples, batch_size, group_size",
        ),
        f"{scenario.engines:,} engines": (scenario.engines * BYTES_AN_ENGINE, "simulate.engines, num_engines"),
        f"a sample of {scenario.lengths.longest:,.0f} tokens": (
            int(min(scenario.lengths.longest, core.max_new_tokens)) * BYTES_A_TOKEN,
            "max_new_tokens, simulate.length_mean, simulate.length_clip",
        ),
    }
    needed, there = sum(size for size, _ in parts.values()), available_bytes()
    if needed > there:
        what = max(parts, key=lambda part: parts[part][0])
        size, options = parts[what]
        raise ResourceError(
            f"{what}: that takes about {size / 1e9:,.1f} GB of memory, and {there / 1e9:,.1f} GB are free",
            origin=", ".join(name for name in options.split(", ") if name in scenario.config.origins) or options,
            remedy="lower one of them",
        )


def available_bytes() -> int:
    """Return the memory that can still be had: of the machine, or of the container where that has less."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in MEMORY_LIMITS:
        try:
            limits.append(int(path.read_text()))
        except (OSError, ValueError):  # no container, or "max"
            continue
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        limits.append(int(lines["MemAvailable"].split()[0]) * 1024)
    except (OSError, ValueError, LookupError):  # not Linux
        pass
    return min(limits)

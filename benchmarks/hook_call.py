"""What a hook call with five implementations costs, against pluggy's own call of the same five.

    .venv/bin/python benchmarks/hook_call.py

Three kinds: an observer hook, a hook of many plugins whose answers count, and a slot hook with four wrappers around it. The implementations
do nothing, so that only the calling is measured. Core adds to pluggy's call the plugin that failed, its cause, and isolation.
"""

from __future__ import annotations

import statistics
import timeit
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import pluggy
from asyncrl import KEEP, Group, Plugin, PluginOptions, Prompt, RunFacts, Verdict, hookimpl, hookspecs
from asyncrl.host import Active, Host

GOAL = 3.0
ROUNDS = 15
CALLS = 20_000
FACTS = RunFacts(batch_size=1, group_size=1, max_concurrent_samples=1, steps=1)
GROUP = Group(Prompt(0, np.zeros(1, np.int32)), ())


class Watches(Plugin):
    @hookimpl
    def on_group_ended(self, prompt_id: int, fate: str, tokens: int) -> None:
        return None


class Filters(Plugin):
    @hookimpl
    def judge_group(self, group: Group) -> Verdict:
        return KEEP


class Judges(Plugin):
    @hookimpl
    def judge_staleness(self, group: Group, version: int) -> Verdict:
        return KEEP


class Wraps(Plugin):
    @hookimpl(wrapper=True)
    def judge_staleness(self, group: Group, version: int) -> Generator[None, Verdict, Verdict]:
        return (yield)


def both(slot: str, *kinds: type[Plugin]) -> tuple[Host, Any]:
    """The same plugins in a host, and registered with pluggy alone; returns the host and pluggy's hooks."""
    plugins = [kind(PluginOptions(), FACTS) for kind in kinds]
    manager = pluggy.PluginManager("asyncrl")
    manager.add_hookspecs(hookspecs)
    for plugin in plugins:
        manager.register(plugin)
    return Host([Active(slot, str(index), "bench", "1.0", plugin) for index, plugin in enumerate(plugins)]), manager.hook


def cases() -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """By name: core's call and pluggy's."""
    host, hook = both("observers", *[Watches] * 5)
    filters, filter_hook = both("filters", *[Filters] * 5)
    wrapped, wrapped_hook = both("staleness", Judges, *[Wraps] * 4)
    judge = wrapped.one("judge_staleness")
    return {
        "observers": (
            lambda: host.observe("on_group_ended", prompt_id=3, fate="trained", tokens=512),
            lambda: hook.on_group_ended(prompt_id=3, fate="trained", tokens=512),
        ),
        "many": (lambda: filters.each("judge_group", group=GROUP), lambda: filter_hook.judge_group(group=GROUP)),
        "wrapped": (lambda: judge(group=GROUP, version=1), lambda: wrapped_hook.judge_staleness(group=GROUP, version=1)),
    }


def run() -> list[dict[str, Any]]:
    """Rows for `benchmarks/run.py`."""
    rows = []
    for name, (ours, bare) in cases().items():
        ratios = [timeit.timeit(ours, number=CALLS) / timeit.timeit(bare, number=CALLS) for _ in range(ROUNDS)]
        rows.append(
            {
                "name": f"hook_call_{name}",
                "ratio": round(statistics.median(ratios), 3),
                "goal": GOAL,
                "unit": "x",
                "runs": ROUNDS,
                "against": "pluggy's own call of the same five implementations",
                "better": "lower",
            }
        )
    return rows


if __name__ == "__main__":
    for row in run():
        print(f"{row['name']:24} {row['ratio']:6.3f} {row['unit']} (goal {row['goal']})")

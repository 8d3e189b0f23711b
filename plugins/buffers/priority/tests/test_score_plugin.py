"""The README's score plugin runs as it is written there, and the best groups go first."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Generator
from pathlib import Path
from statistics import pvariance
from typing import Any

import numpy as np
import pytest
from asyncrl import Group, OptionError, Plugin, PluginOptions, RunFacts, Taken, hookimpl
from asyncrl.errors import PluginFailed
from asyncrl.fit import check_fit
from asyncrl.host import Active, Host
from asyncrl_priority import Priority
from simulated import facts, host, long_tail, simulate

README = (Path(__file__).parent.parent / "README.md").read_text()


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def variance_score() -> type[Plugin]:
    namespace: dict[str, Any] = {}
    exec(compile(block("python"), "README.md", "exec"), namespace)
    (target,) = tomllib.loads(block("toml"))["project"]["entry-points"]["asyncrl.observers"].values()
    kind: type[Plugin] = namespace[target.partition(":")[2]]
    return kind


class Watch(Plugin):
    """Variance of what each take gave, and the greatest of what was held."""

    def __init__(self, options: PluginOptions, run: RunFacts) -> None:
        super().__init__(options, run)
        self.takes: list[tuple[float, float]] = []
        self.buffer: Priority | None = None

    @hookimpl(wrapper=True)
    def buffer_take(self) -> Generator[None, Taken, Taken]:
        assert self.buffer is not None
        held = self.buffer.buffer_state().groups
        answer = yield
        for group in answer.groups:
            self.takes.append((variance(group), max(map(variance, held))))
        return answer


def variance(group: Group) -> float:
    return pvariance([sample.reward for sample in group.samples])


def test_groups_leave_by_the_score_that_an_observer_gives() -> None:
    async def reward(prompt: Any, sample: Any) -> float:
        return float(sample.token_ids[0] % 5) * (prompt.prompt_id % 3)

    run = facts(group_size=4, max_concurrent_samples=32, steps=20)
    plugged: Host = host(
        run,
        ("buffer", "priority", {"order": "score", "capacity_factor": 3.0}),
        ("observers", variance_score(), {}),
        ("observers", Watch, {}),
        reward=reward,
    )
    watch: Active = plugged.actives[-1]
    watch.plugin.buffer = plugged.plugin("buffer")  # type: ignore[attr-defined]
    simulate(run, plugged, script=long_tail(1), train_seconds=lambda step: 6.0)
    takes = watch.plugin.takes  # type: ignore[attr-defined]
    assert all(given == best for given, best in takes)
    assert len({given for given, _ in takes}) == 3
    assert plugged.plugin("buffer").metrics.score.drain()[""][3] == max(best for _, best in takes)


def test_an_order_by_score_that_nobody_gives_is_refused_with_what_to_do() -> None:
    run = facts()
    by_score = ("buffer", "priority", {"order": "score"})
    with pytest.raises(OptionError, match="'priority'.* needs a plugin that implements score_group") as error:
        check_fit(host(run, by_score))
    assert "--buffer.order freshest" in error.value.remedy
    check_fit(host(run, by_score, ("observers", variance_score(), {})))


class Answers(Plugin):
    answer: Any = None

    @hookimpl
    def score_group(self, group: Group) -> float:
        return self.answer


def scored_by(answer: Any) -> Priority:
    run = facts(steps=2)
    plugged = host(run, ("buffer", "priority", {"order": "score"}), ("observers", Answers, {}))
    plugged.plugin("observers").answer = answer
    simulate(run, plugged)
    return plugged.plugin("buffer")


@pytest.mark.parametrize("answer", [2, 2.0, np.float32(2.0), np.int64(2)])
def test_a_score_may_be_any_finite_number(answer: Any) -> None:
    _, _, lowest, highest = scored_by(answer).metrics.score.drain()[""]
    assert (lowest, highest) == (2.0, 2.0)
    assert type(lowest) is float


@pytest.mark.parametrize("answer", [None, "2", float("nan"), float("inf"), np.float32("nan")])
def test_any_other_score_ends_the_run_and_names_who_gave_it(answer: Any) -> None:
    with pytest.raises(PluginFailed, match="observers plugin 'Answers'.* answered score_group with .*right is a finite number"):
        scored_by(answer)

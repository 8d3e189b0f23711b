"""Tasks that break one rule each."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import ClassVar

import numpy as np
from asyncrl import EvalSet, OptionError, Plugin, PluginOptions, Prompt, RunFacts, Sample, SamplingParams, Score, hookimpl

from broken.breaking import breaks


@breaks("")
class Right(Plugin):
    def __init__(self, options: PluginOptions, run: RunFacts) -> None:
        super().__init__(options, run)
        self.random = Random(run.seed)

    @hookimpl
    def task_model(self, cache_dir: Path) -> Path:
        raise OptionError("no model of its own", origin="model")

    @hookimpl
    def task_open(self, model: Path) -> None: ...

    @hookimpl
    def train_prompt(self, position: int) -> Prompt:
        return self.prompt(position)

    def prompt(self, position: int) -> Prompt:
        return Prompt(position, np.array([3 + position % 90, 4], np.int32), {"answer": position})

    @hookimpl
    async def score_sample(self, prompt: Prompt, sample: Sample) -> Score:
        return Score(self.reward(sample))

    def reward(self, sample: Sample) -> float:
        return float(len(sample.token_ids) % 2)

    @hookimpl
    def eval_sets(self) -> tuple[EvalSet, ...]:
        return (EvalSet("held-out", tuple(Right.prompt(self, index) for index in range(self.first, 4)), SamplingParams(8)),)

    first: ClassVar[int] = 0


@breaks("test_it_opens_and_closes")
class CanNotBeClosed(Right):
    @hookimpl
    async def task_close(self) -> None:
        raise RuntimeError("nothing to close")


@breaks("test_any_completion_gets_a_finite_reward", scoring_seconds=0.2)
class BlocksTheEventLoop(Right):
    def reward(self, sample: Sample) -> float:
        time.sleep(5.0 * (len(sample.token_ids) == 0))
        return 0.0


@breaks("test_its_prompts_are_prompts")
class EndsAfterAThousand(Right):
    def prompt(self, position: int) -> Prompt:
        return [super(EndsAfterAThousand, self).prompt(each) for each in range(1000)][position]


@breaks("test_its_prompts_are_prompts")
class WidensTokens(Right):
    def prompt(self, position: int) -> Prompt:
        right = super().prompt(position)
        return replace(right, token_ids=right.token_ids.astype(np.int64))


@breaks("test_a_prompt_depends_on_its_position_alone")
class DrawsOnAndOn(Right):
    def prompt(self, position: int) -> Prompt:
        return replace(super().prompt(position), data={"answer": self.random.random()})


@breaks("test_any_completion_gets_a_finite_reward")
class RewardsWithoutBound(Right):
    def reward(self, sample: Sample) -> float:
        return float("inf") if len(sample.token_ids) == 0 else 0.0


@breaks("test_the_same_completion_gets_the_same_reward")
class GrowsTired(Right):
    scored: ClassVar[int] = 0

    def reward(self, sample: Sample) -> float:
        GrowsTired.scored += 1
        return 1.0 / GrowsTired.scored


@breaks("test_its_eval_sets_stay_the_same")
class CountsFromOne(Right):
    first = 1


@breaks("test_closing_it_leaves_no_process", leaving_seconds=0.5)
class LeavesAProcess(Right):
    @hookimpl
    def task_open(self, model: Path) -> None:
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(8)"])


@breaks("test_its_own_model_is_a_model")
class NamesItsModelByText(Right):
    @hookimpl
    def task_model(self, cache_dir: Path) -> Path:
        from asyncrl.testing.models import character_model

        return str(character_model())  # type: ignore[return-value]

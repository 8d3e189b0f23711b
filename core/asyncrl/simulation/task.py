"""The task of a simulation: prompts of a given length, rewards that were recorded or are drawn by seed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from asyncrl.authoring import Plugin, PluginOptions, RunFacts
from asyncrl.evaluation.records import EvalSet
from asyncrl.hook_trace import HookTrace
from asyncrl.hookspecs import hookimpl
from asyncrl.host import Active, Host
from asyncrl.samples import Prompt, Sample, Score
from asyncrl.simulation.lengths import RecordedGroup, uniform

REAL_SLOTS = ("producer", "scheduler", "buffer", "staleness", "filters", "observers")
"""Slots whose plugins run in a simulation as they do in a run; scripted parts stand for the others."""


class ScriptedTask(Plugin):
    """Sample i of prompt p has a reward that is a pure function of p, i and the seed: the recorded one where groups with rewards are
    given (cycled like their lengths), else 1 or 0, drawn with a probability of the prompt's own: u ** (1 / mean - 1) for a uniform u,
    which is hard for some prompts, easy for others, and `reward_mean` on average.

    Args:
        run: facts of the run; its seed draws the rewards.
        prompt_tokens: length of every prompt.
        reward_mean: share of samples with reward 1, 0 to 1; of no account where rewards were recorded.
        recorded: groups in the order of the prompts.
    """

    slot = "task"
    name = "scripted"

    def __init__(
        self,
        run: RunFacts,
        *,
        prompt_tokens: int = 64,
        reward_mean: float = 0.5,
        recorded: Sequence[RecordedGroup] = (),
    ) -> None:
        super().__init__(PluginOptions(), run)
        self._hardness = 1 / reward_mean - 1 if reward_mean > 0 else math.inf
        self._prompt = np.zeros(prompt_tokens, np.int32)
        self._prompt.setflags(write=False)
        self._recorded = recorded if recorded and all(group.rewards for group in recorded) else ()

    @hookimpl
    def train_prompt(self, position: int) -> Prompt:
        return Prompt(position, self._prompt)

    @hookimpl
    async def score_sample(self, prompt: Prompt, sample: Sample) -> Score:
        """The engine writes the index of a sample into its first token."""
        return Score(self.reward(prompt.prompt_id, int(sample.token_ids[0])))

    @hookimpl
    def eval_sets(self) -> tuple[EvalSet, ...]:
        return ()

    def reward(self, prompt_id: int, index: int) -> float:
        """Return the reward of one sample."""
        if self._recorded:
            rewards = self._recorded[prompt_id % len(self._recorded)].rewards
            return rewards[index % len(rewards)]
        chance = uniform(self.run.seed, prompt_id) ** self._hardness
        return float(uniform(self.run.seed, prompt_id, index) < chance)


def simulation_host(actives: Iterable[Active], task: Plugin, trace: HookTrace | None = None) -> Host:
    """Return the host of a simulation: the given plugins of the slots in `REAL_SLOTS`, first-party or not, and `task` in place of the
    task. Plugins of the other slots (engine, trainer, eval, loggers, and the task's own) are left out. `trace` writes their calls down.

    Raises:
        PluginLoadError: a hook is missing, unknown, doubled, or of the wrong kind.
    """
    real = [active for active in actives if active.slot in REAL_SLOTS]
    return Host([Active("task", task.name, "asyncrl-core", "", task), *real], trace)

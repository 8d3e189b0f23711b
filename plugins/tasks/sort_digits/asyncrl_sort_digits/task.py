"""The task plugin: prompts by position, a strict reward, one held-out set, and a model of its own when none is given."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from asyncrl import EvalSet, OptionError, Plugin, PluginOptions, Prompt, RunFacts, Sample, SamplingParams, Score, hookimpl
from pydantic import Field, model_validator

from asyncrl_sort_digits.model_cache import Recipe, model_directory
from asyncrl_sort_digits.problems import HELD_OUT, TOKEN_OF, Problems, answer_tokens, prompt_tokens, readable

EVAL_SET = "held-out"
SAMPLED_SET = "held-out-sampled"
"""The same prompts, several samples each."""


class SortDigitsOptions(PluginOptions):
    seed: int | None = Field(None, ge=0, description="Seed of the prompts and of the model's warm start; unset, the run's seed.")
    min_digits: int = Field(3, ge=3, le=16, description="Fewest digits of a prompt.")
    max_digits: int = Field(5, ge=3, le=16, description="Most digits of a prompt.")
    num_eval: int = Field(HELD_OUT, ge=1, le=HELD_OUT, description="Held-out prompts that an evaluation uses; never trained on.")
    eval_samples_per_prompt: int = Field(
        1, ge=1, description="Above 1, evaluations have a second set: the held-out prompts, each sampled so often."
    )
    eval_temperature: float = Field(1.0, gt=0, description="Temperature of that second set; the first one is greedy.")

    @model_validator(mode="after")
    def _range_is_not_empty(self) -> SortDigitsOptions:
        if self.min_digits > self.max_digits:
            raise ValueError(f"min_digits ({self.min_digits}) is above max_digits ({self.max_digits})")
        return self


class SortDigits(Plugin):
    """`BOS 4 1 3 =` is to be continued by `1 3 4 EOS`, and by nothing else."""

    hook_api = 1
    Options = SortDigitsOptions

    def __init__(self, options: SortDigitsOptions, run: RunFacts) -> None:
        super().__init__(options, run)
        self._seed = run.seed if options.seed is None else options.seed
        self._problems = Problems(options.min_digits, options.max_digits)
        self._num_eval = options.num_eval
        self._longest_answer = options.max_digits + 1
        self._eval_samples, self._eval_temperature = options.eval_samples_per_prompt, options.eval_temperature
        self._held_out: list[str] = []
        self._never_trained: frozenset[str] = frozenset()

    @hookimpl
    def check_run(self, run: RunFacts) -> None:
        """Refuse a token limit that no longest answer fits in, and a model that speaks another vocabulary."""
        if run.max_new_tokens < self._longest_answer:
            raise OptionError(
                f"max_new_tokens {run.max_new_tokens} is too small for task.max_digits {self._longest_answer - 1}",
                origin="max_new_tokens",
                remedy=f"at least {self._longest_answer}: the digits and the end",
            )
        if run.model and Path(run.model).is_dir():
            self._check_vocabulary(Path(run.model))

    @hookimpl
    def task_model(self, cache_dir: Path) -> Path:
        recipe = Recipe(seed=self._seed, min_digits=self._problems.min_digits, max_digits=self._problems.max_digits)
        return model_directory(cache_dir, recipe)

    @hookimpl
    def task_open(self, model: Path) -> None:
        self._check_vocabulary(model)
        self._held_out = self._problems.held_out()
        self._never_trained = frozenset(self._held_out)

    @hookimpl
    def train_prompt(self, position: int) -> Prompt:
        digits = self._problems.draw_training(f"train:{self._seed}", position, self._never_trained)
        return self._prompt(position, digits)

    @hookimpl
    async def score_sample(self, prompt: Prompt, sample: Sample) -> Score:
        """Compare token ids, never text: a decoder drops special and unused ids, and would pay for wrong answers."""
        return Score(1.0 if sample.token_ids.tolist() == _right_tokens(prompt.data["answer"]) else 0.0)

    @hookimpl
    def eval_sets(self) -> tuple[EvalSet, ...]:
        prompts = tuple(self._prompt(index, digits) for index, digits in enumerate(self._held_out[: self._num_eval]))
        # One token more than the longest answer, so that a model which does not stop is seen not to.
        params = SamplingParams(max_new_tokens=self._longest_answer + 1, temperature=0.0)
        greedy = EvalSet(EVAL_SET, prompts, params, text=readable)
        if self._eval_samples == 1:
            return (greedy,)
        sampled = replace(params, temperature=self._eval_temperature)
        return (greedy, EvalSet(SAMPLED_SET, prompts, sampled, self._eval_samples, readable))

    def _prompt(self, prompt_id: int, digits: str) -> Prompt:
        data = {"digits": digits, "answer": "".join(sorted(digits))}
        return Prompt(prompt_id, np.array(prompt_tokens(digits), np.int32), data, source=digits)

    def _check_vocabulary(self, model: Path) -> None:
        if not _knows_our_tokens(model):
            raise OptionError(
                f"the sort-digits task needs its own tokenizer, and {model} has another one",
                origin="model",
                remedy="leave model unset, or choose another task",
            )


@lru_cache(maxsize=4096)
def _right_tokens(answer: str) -> list[int]:
    return answer_tokens(answer)


def _knows_our_tokens(model: Path) -> bool:
    """Whether the directory's tokenizer gives each character the id that the prompts are written in."""
    try:
        tokenizer: dict[str, Any] = json.loads((model / "tokenizer.json").read_text())
        vocabulary = tokenizer["model"]["vocab"]
        return all(vocabulary.get(character) == token for character, token in TOKEN_OF.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False

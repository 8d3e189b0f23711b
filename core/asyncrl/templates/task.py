"""Adds two numbers: prompts like `12+7=` for any model whose tokenizer has a token for each digit, `+` and `=`."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from asyncrl import (
    Counter,
    DataError,
    EvalSet,
    MetricSet,
    Plugin,
    PluginOptions,
    Prompt,
    RunFacts,
    Sample,
    SamplingParams,
    Score,
    Status,
    hookimpl,
)
from pydantic import Field

CHARACTERS = "0123456789+="


class TemplateNameOptions(PluginOptions):
    digits: int = Field(2, ge=1, le=9, description="Most digits of a number to add.")
    num_eval: int = Field(64, ge=1, description="Held-out prompts of an evaluation; none of them is ever trained on.")


class TemplateNameMetrics(MetricSet):
    answers = Counter("Answers that were scored: right, wrong, or cut_off at the token limit", unit="samples", label="outcome")


class TemplateName(Plugin):
    """The reward is 1 for exactly the digits of the sum and then the end, else 0."""

    hook_api = 1
    Options = TemplateNameOptions
    Metrics = TemplateNameMetrics
    options: TemplateNameOptions
    metrics: TemplateNameMetrics

    def __init__(self, options: TemplateNameOptions, run: RunFacts) -> None:
        super().__init__(options, run)
        self._token_of: dict[str, int] = {}
        self._text_of: dict[int, str] = {}

    @hookimpl
    def task_open(self, model: Path) -> None:
        vocabulary = read_vocabulary(model)
        if missing := [character for character in CHARACTERS if character not in vocabulary]:
            raise DataError(f"the tokenizer of {model} has no token for {missing[0]!r}", origin="model")
        self._token_of = {character: vocabulary[character] for character in CHARACTERS}
        self._text_of = {token: character for character, token in self._token_of.items()}

    @hookimpl
    def train_prompt(self, position: int) -> Prompt:
        return self._prompt(position, "train", held_out=False)

    @hookimpl
    async def score_sample(self, prompt: Prompt, sample: Sample) -> Score:
        if sample.status is not Status.COMPLETED:
            self.metrics.answers.add(1, "cut_off")
            return Score(0.0)
        right = self._text(sample.token_ids[:-1].tolist()) == prompt.data["answer"]  # the last token is the end
        self.metrics.answers.add(1, "right" if right else "wrong")
        return Score(float(right))

    @hookimpl
    def eval_sets(self) -> tuple[EvalSet, ...]:
        prompts = tuple(self._prompt(index, "eval", held_out=True) for index in range(self.options.num_eval))
        params = SamplingParams(max_new_tokens=self.options.digits + 2, temperature=0.0)
        return (EvalSet("held-out", prompts, params, text=self._text),)

    def _prompt(self, index: int, stream: str, *, held_out: bool) -> Prompt:
        """Draw by seed and index alone, so that a resumed run sees the same prompts; every tenth problem is held out."""
        chance, limit = random.Random(f"{self.run.seed} {stream} {index}"), 10**self.options.digits
        while True:
            one, other = chance.randrange(limit), chance.randrange(limit)
            if ((one + 7 * other) % 10 == 0) == held_out:
                break
        text = f"{one}+{other}="
        tokens = np.array([self._token_of[character] for character in text], np.int32)
        return Prompt(index, tokens, {"answer": str(one + other)}, source=text)

    def _text(self, token_ids: Sequence[int]) -> str:
        return "".join(self._text_of.get(token, "?") for token in token_ids)


def read_vocabulary(model: Path) -> dict[str, int]:
    """Return the id of each token in a Hugging Face directory. Raises `DataError`."""
    try:
        vocabulary: dict[str, int] = dict(json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"])
    except (OSError, ValueError, KeyError, TypeError) as cause:
        remedy = "name a directory whose tokenizer.json has a vocabulary"
        raise DataError(f"can't read the tokenizer of {model}: {cause}", origin="model", remedy=remedy) from cause
    return vocabulary

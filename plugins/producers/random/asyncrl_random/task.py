"""The task: prompts of random tokens, and rewards that a coin gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from asyncrl import EvalSet, OptionError, Plugin, PluginOptions, Prompt, RunFacts, Sample, SamplingParams, Score, hookimpl
from asyncrl.simulation.lengths import LognormalLengths, uniform
from pydantic import Field

TRAINING, HELD_OUT = 0, 1
PROMPT = -2
"""The index under which a prompt's length is drawn: those of samples count from 0."""


class RandomTaskOptions(PluginOptions):
    mean: float = Field(64.0, ge=1, allow_inf_nan=False, description="Mean tokens a prompt, before the law is cut.")
    sigma: float = Field(
        0.5, ge=0, le=5, description="Standard deviation of the logarithm of a prompt's length; 0 makes all equally long."
    )
    min_tokens: int = Field(1, ge=1, description="Tokens of the shortest prompt.")
    max_tokens: int = Field(
        0, ge=0, description="Tokens of the longest prompt; 0 is four times the mean, if the context has room."
    )
    success_rate: float = Field(0.5, ge=0, le=1, description="Share of samples with reward 1; the others have 0.")
    num_eval: int = Field(0, ge=0, description="Held-out prompts, so that evaluations have something to do; 0 is no eval set.")
    seed: int | None = Field(None, ge=0, description="Seed of prompts and rewards; unset, the run's seed.")


class RandomTask(Plugin):
    """Everything is a pure function of seed, position and completion: a run that goes on draws what the other one would have."""

    hook_api = 1
    Options = RandomTaskOptions
    options: RandomTaskOptions

    def __init__(self, options: RandomTaskOptions, run: RunFacts) -> None:
        super().__init__(options, run)
        self._seed = run.seed if options.seed is None else options.seed
        self._vocab_size = 0

    @hookimpl
    def check_run(self, run: RunFacts) -> None:
        """Refuse lengths that can't be, or that the model's context has no room for."""
        model = Path(run.model)
        self._lengths(_described(model) if run.model and model.is_dir() else {})

    @hookimpl
    def task_model(self, cache_dir: Path) -> Path:
        raise OptionError(
            "the random task has no model of its own", origin="model", remedy="set model to a Hugging Face directory"
        )

    @hookimpl
    def task_open(self, model: Path) -> None:
        config = _described(model)
        self._law = self._lengths(config)
        self._vocab_size = int(config["vocab_size"])

    @hookimpl
    def train_prompt(self, position: int) -> Prompt:
        return self._prompt(TRAINING, position)

    @hookimpl
    async def score_sample(self, prompt: Prompt, sample: Sample) -> Score:
        drawn = uniform(self._seed, prompt.prompt_id, crc32(sample.token_ids.tobytes()))
        return Score(float(drawn < self.options.success_rate))

    @hookimpl
    def eval_sets(self) -> tuple[EvalSet, ...]:
        if not self.options.num_eval:
            return ()
        prompts = tuple(self._prompt(HELD_OUT, index) for index in range(self.options.num_eval))
        return (EvalSet("random", prompts, SamplingParams(self.run.max_new_tokens, temperature=1.0)),)

    def _prompt(self, kind: int, position: int) -> Prompt:
        length = max(self.options.min_tokens, self._law.sample(position, PROMPT - kind)[0])
        # RandomState's stream is frozen for good, unlike default_rng's: a resumed run may have another numpy.
        words = [self._seed & 0xFFFFFFFF, self._seed >> 32 & 0xFFFFFFFF, kind, position & 0xFFFFFFFF, position >> 32]
        tokens = np.random.RandomState(words).randint(0, self._vocab_size, length, np.int32)
        return Prompt(position, tokens, source=f"random {position}")

    def _lengths(self, config: dict[str, Any]) -> LognormalLengths:
        """Return the law of the prompts' lengths for a model; an empty config is one with room for everything."""
        options, most = self.options, self.run.max_new_tokens
        context = int(config.get("max_position_embeddings") or 0)
        longest = options.max_tokens or max(1, round(4 * options.mean))
        room = context - most if context else longest
        if not options.max_tokens and room >= options.mean:
            longest = min(longest, room)
        if longest > room:
            raise OptionError(
                f"a prompt of {longest} tokens and a completion of {most} are more than the model's context of {context}",
                origin=f"task.{'max_tokens' if options.max_tokens else 'mean'}, max_new_tokens",
                remedy=f"both together can be {context}",
            )
        for name, value in (("mean", options.mean), ("min_tokens", options.min_tokens)):
            if value > longest:
                raise OptionError(
                    f"task.{name} = {value:g} is more than the {longest} tokens of the longest prompt",
                    origin=f"task.{name}, task.max_tokens",
                )
        return LognormalLengths(options.mean, options.sigma, longest / options.mean, self._seed)


def _described(model: Path) -> dict[str, Any]:
    """Return what a model's config says of its text part."""
    try:
        config: dict[str, Any] = json.loads((model / "config.json").read_text())
        config = {**config, **(config.get("text_config") or {})}
        int(config["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError) as cause:
        raise OptionError(f"{model / 'config.json'} can't be read, or has no vocab_size: {cause!r}", origin="model") from None
    return config

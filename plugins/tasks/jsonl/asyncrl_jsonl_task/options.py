"""The options of the jsonl task, and which of them cannot go together."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from asyncrl import PluginOptions
from pydantic import Field, model_validator

from asyncrl_jsonl_task.eval_options import EvalFile, EvalSettings, SetName, TopK, Written


class JsonLinesOptions(PluginOptions):
    path: Path | None = Field(
        None,
        description="Training data: a file of JSON objects, one a line, or a directory of *.jsonl files. Only `asyncrl eval` needs none.",
    )
    prompt_field: str = Field("prompt", min_length=1, description="Field with the prompt: text, or a list of chat messages.")
    answer_field: str = Field("answer", min_length=1, description="Field with the right answer: text or a number.")
    id_field: str = Field("", description="Field that names a row in messages, beside its file and line; empty for none.")

    scorer: Literal["exact", "regex", "math"] = Field(
        "exact",
        description="exact: the whole completion is the answer. regex: what `pattern` finds last is the answer. "
        "math: the final expression equals the answer (math-verify).",
    )
    pattern: str = Field("", description="Regular expression for scorer regex; its first group, if it has one, is compared.")
    scoring_timeout: float = Field(
        5.0, gt=0, description="Seconds for one scoring by regex or math before its process is killed."
    )
    scoring_processes: int = Field(2, ge=1, description="Most processes that score by regex or math at once.")
    scoring_memory_gib: float = Field(2.0, ge=0.25, description="Memory limit of a scoring process in GiB.")

    chat_template: bool = Field(True, description="Apply the tokenizer's chat template when it has one.")
    template_arguments: dict[str, Any] = Field(
        {}, description="What else the template is given, such as enable_thinking = false."
    )
    system_prompt: str = Field("", description="System message put before each prompt that has none; needs a chat template.")
    max_prompt_tokens: int | None = Field(None, ge=1, description="Longest prompt in tokens; unset, any length.")
    long_prompts: Literal["error", "skip"] = Field("error", description="What a prompt above max_prompt_tokens is.")

    shuffle: bool = Field(True, description="Shuffle each epoch anew; otherwise rows come in the order of the file.")
    seed: int | None = Field(None, ge=0, description="Seed of the shuffle; unset, the run's seed.")

    eval: dict[SetName, Written] = Field(
        {},
        description="Eval sets: name and file, with the same fields and scorer as the training data; or name and a table of path and "
        "what is different for this set of temperature, top_p, top_k, samples_per_prompt, max_new_tokens, limit and pass_reward.",
    )
    eval_temperature: float = Field(0.0, ge=0, description="Temperature in evaluation; 0 is greedy.")
    eval_top_p: float = Field(
        1.0, gt=0, le=1, description="In evaluation, sample from the most probable tokens up to this probability."
    )
    eval_top_k: TopK = Field(-1, description="In evaluation, sample from this many most probable tokens; -1 is off.")
    eval_samples_per_prompt: int = Field(1, ge=1, description="Completions of each eval prompt; the reward is their mean.")
    eval_max_new_tokens: int | None = Field(None, ge=1, description="Token limit in evaluation; unset, the run's.")
    eval_limit: int | None = Field(
        None, ge=1, description="How many prompts of each eval set are used, from its first; unset, all."
    )
    eval_pass_reward: float = Field(
        1.0, allow_inf_nan=False, description="Reward with which a completion has passed, for pass@k in evaluation."
    )

    def eval_set(self, name: str) -> EvalSettings:
        """Return an eval set with every setting known."""
        written = self.eval[name]
        own = written.model_dump(exclude_none=True) if isinstance(written, EvalFile) else {"path": written}
        fields = EvalSettings.model_fields.keys() - own.keys()
        return EvalSettings(**own, **{field: getattr(self, f"eval_{field}") for field in fields})

    @model_validator(mode="after")
    def _options_fit_together(self) -> JsonLinesOptions:
        if self.scorer == "regex" and not self.pattern:
            raise ValueError("scorer regex needs a pattern")
        if self.pattern and self.scorer != "regex":
            raise ValueError(f"pattern is only for scorer regex, and scorer is {self.scorer}")
        try:
            re.compile(self.pattern)
        except (re.error, RecursionError, OverflowError) as cause:
            raise ValueError(f"pattern {self.pattern!r} is no regular expression: {cause}") from None
        if self.system_prompt and not self.chat_template:
            raise ValueError("system_prompt needs chat_template, which is off")
        alike = "above 0: greedy completions are all alike"
        if not self.eval and self.eval_samples_per_prompt > 1 and self.eval_temperature == 0:
            raise ValueError(f"eval_samples_per_prompt above 1 needs an eval_temperature {alike}")
        for name in self.eval:
            one = self.eval_set(name)
            if one.samples_per_prompt > 1 and one.temperature == 0:
                raise ValueError(f"eval set {name!r}: {one.samples_per_prompt} samples_per_prompt need a temperature {alike}")
        return self

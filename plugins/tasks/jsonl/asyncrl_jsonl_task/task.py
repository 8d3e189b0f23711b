"""The task plugin: rows become prompts by position, completions become rewards, files become eval sets."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from asyncrl import (
    DataError,
    EvalSet,
    OptionError,
    Plugin,
    Prompt,
    RunFacts,
    Sample,
    Score,
    ScoringPool,
    Status,
    hookimpl,
)

from asyncrl_jsonl_task.options import JsonLinesOptions
from asyncrl_jsonl_task.order import Order
from asyncrl_jsonl_task.rows import Fields, Row, read_rows
from asyncrl_jsonl_task.text import Text, context_length, has_chat_template, most_tokens

TRAINING = ""
"""Names the training rows among those of the eval sets, each of which has a name."""


class JsonLinesTask(Plugin):
    """Prompts and answers from the user's own files."""

    hook_api = 1
    Options = JsonLinesOptions
    options: JsonLinesOptions

    def __init__(self, options: JsonLinesOptions, run: RunFacts) -> None:
        super().__init__(options, run)
        self._fields = Fields(options.prompt_field, options.answer_field, options.id_field)

    @hookimpl
    def check_run(self, run: RunFacts) -> None:
        """Read every file, so that a broken line is known before anything starts."""
        if self.options.path is None and run.steps:
            raise OptionError(
                "the jsonl task has no training data", origin="task.path", remedy="set it to a file of JSON objects, one a line"
            )
        rows = [row for _, found in self._read_all() for row in found]
        model = Path(run.model)
        if not self.options.chat_template:
            self._refuse_chat(rows, "task.chat_template is off")
        elif run.model and model.is_dir() and not has_chat_template(model):
            self._refuse_chat(rows, f"the tokenizer of {model} has none")

    @hookimpl
    def task_model(self, cache_dir: Path) -> Path:
        raise OptionError(
            "the jsonl task has no model of its own", origin="model", remedy="set model to a Hugging Face directory"
        )

    @hookimpl
    def task_open(self, model: Path) -> None:
        options = self.options
        self._text = Text(
            model,
            chat_template=options.chat_template,
            template_arguments=options.template_arguments,
            system_prompt=options.system_prompt,
        )
        self._context = context_length(model)
        files = dict(self._read_all())
        if TRAINING in files:
            self._rows = self._short_enough(files.pop(TRAINING), "task.path", self.run.max_new_tokens)
            seed = self.run.seed if options.seed is None else options.seed
            self._order = Order(len(self._rows), seed, shuffle=options.shuffle)
        self._eval_sets = tuple(self._eval_set(name, rows) for name, rows in files.items())
        if options.scorer != "exact":
            self._pool = ScoringPool(
                f"asyncrl_jsonl_task.{options.scorer}_scorer:score",
                workers=options.scoring_processes,
                timeout=options.scoring_timeout,
                memory_bytes=int(options.scoring_memory_gib * 2**30),
            )

    @hookimpl
    def train_prompt(self, position: int) -> Prompt:
        return self._prompt(position, self._rows[self._order.row(position)])

    @hookimpl
    async def score_sample(self, prompt: Prompt, sample: Sample) -> Score:
        """Exact is compared here; what can hang on hostile text runs in a process that can be killed."""
        completion, answer = self._text.completion(sample.token_ids.tolist()), prompt.data["answer"]
        if self.options.scorer == "exact":
            # Cut off at the token limit, it is not the whole completion.
            return Score(float(completion.strip() == answer and sample.status is Status.COMPLETED))
        if self.options.scorer == "regex":
            return await self._pool.submit(self.options.pattern, completion, answer)
        return await self._pool.submit(completion, answer)

    @hookimpl
    def eval_sets(self) -> tuple[EvalSet, ...]:
        return self._eval_sets

    @hookimpl
    async def task_close(self) -> None:
        if hasattr(self, "_pool"):
            await self._pool.close()

    def _read_all(self) -> Iterable[tuple[str, list[Row]]]:
        """The training rows, if there are any, then those of each eval set."""
        if self.options.path is not None:
            yield TRAINING, read_rows(self.options.path, self._fields, "task.path")
        for name in self.options.eval:
            yield name, read_rows(self.options.eval_set(name).path, self._fields, f"task.eval.{name}")

    def _refuse_chat(self, rows: list[Row], why: str) -> None:
        if self.options.system_prompt:
            raise OptionError(f"a system prompt needs a chat template, and {why}", origin="task.system_prompt")
        for row in rows:
            if not isinstance(row.prompt, str):
                raise OptionError(f"{row.source}: a list of messages needs a chat template, and {why}", origin="task.path")

    def _short_enough(self, rows: list[Row], origin: str, max_new_tokens: int) -> list[Row]:
        """The rows whose prompts are within `max_prompt_tokens`, or leave room for a completion in the model's context."""
        limit, name = self.options.max_prompt_tokens, "task.max_prompt_tokens"
        if limit is None:
            limit, name = self._context - max_new_tokens, "what the model's context leaves beside max_new_tokens"
            unclear = [row for row in rows if most_tokens(row) > limit]  # only these are tokenized before their turn
            if not unclear:
                return rows
        kept = []
        for row in rows:
            length = len(self._text.prompt_tokens(row))
            if length <= limit:
                kept.append(row)
            elif self.options.long_prompts == "error":
                raise DataError(
                    f"{row.source}: the prompt has {length} tokens, {name} is {limit}",
                    origin=origin,
                    remedy='task.long_prompts = "skip" leaves such rows out',
                )
        if not kept:
            raise DataError(f"every prompt has more than {limit} tokens ({name})", origin=origin)
        return kept

    def _eval_set(self, name: str, rows: list[Row]) -> EvalSet:
        one = self.options.eval_set(name)
        params = one.params(self.run.max_new_tokens)
        kept = self._short_enough(rows, f"task.eval.{name}", params.max_new_tokens)[: one.limit]
        prompts = tuple(self._prompt(index, row) for index, row in enumerate(kept))
        return EvalSet(name, prompts, params, one.samples_per_prompt, self._text.completion, one.pass_reward)

    def _prompt(self, prompt_id: int, row: Row) -> Prompt:
        return Prompt(prompt_id, self._text.prompt_tokens(row), {"answer": row.answer}, row.source)

"""Rows become prompts, completions become rewards, and hostile completions become nothing."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from asyncrl import DataError, OptionError, Prompt, RunFacts, Sample, SamplingParams, Score, Status, full_mask
from asyncrl.errors import PluginFailed
from asyncrl_jsonl_task import JsonLinesOptions, JsonLinesTask
from transformers import AutoTokenizer

RUN = RunFacts(batch_size=4, group_size=4, max_concurrent_samples=16, steps=10, max_new_tokens=33)
EOS, PAD, UNUSED = 2, 0, 5000
Write = Callable[..., Path]


@asynccontextmanager
async def opened(path: Path | None, model: Path, run: RunFacts = RUN, **options: Any) -> AsyncIterator[JsonLinesTask]:
    before = psutil.Process().children()
    task = JsonLinesTask(JsonLinesOptions(path=path, **options), run)
    task.task_open(model)
    try:
        yield task
    finally:
        await task.task_close()
    assert set(psutil.Process().children()) <= set(before)


async def test_without_training_data_there_are_the_eval_sets(write: Write, plain_model: Path) -> None:
    async with opened(None, plain_model, eval={"held-out": write({"prompt": "1+1=", "answer": 2})}) as task:
        (held_out,) = task.eval_sets()
        assert [spelled(plain_model, prompt) for prompt in held_out.prompts] == ["1+1="]


def finished(ids: list[int], status: Status = Status.COMPLETED) -> Sample:
    count = len(ids)
    return Sample(np.array(ids, np.int32), np.zeros(count, np.float32), full_mask(count), ((0, count),), status)


def saying(model: Path, text: str) -> Sample:
    return finished([*AutoTokenizer.from_pretrained(model)(text)["input_ids"], EOS])


def spelled(model: Path, prompt: Prompt) -> str:
    return str(AutoTokenizer.from_pretrained(model).decode(prompt.token_ids))


async def test_a_row_becomes_a_prompt_that_is_the_same_when_asked_again(write: Write, plain_model: Path) -> None:
    """Field report 8."""
    path = write(*[{"prompt": f"{number}+1=", "answer": number + 1} for number in range(20)])
    async with opened(path, plain_model) as task, opened(path, plain_model) as again:
        prompts = [task.train_prompt(position) for position in range(60)]
        assert [prompt.prompt_id for prompt in prompts] == list(range(60))
        assert all(prompt.token_ids.dtype == np.int32 for prompt in prompts)
        assert spelled(plain_model, prompts[0]) == f"{int(prompts[0].data['answer']) - 1}+1="
        assert prompts[0].source.startswith("train.jsonl:")
        for position in (59, 0, 31):
            there = again.train_prompt(position)
            assert there.token_ids.tobytes() == prompts[position].token_ids.tobytes()
            assert (there.data, there.source) == (prompts[position].data, prompts[position].source)


async def test_the_seed_is_the_runs_unless_given(write: Write, plain_model: Path) -> None:
    path = write(*[{"prompt": str(number), "answer": 0} for number in range(100)])
    async with opened(path, plain_model, RunFacts(4, 4, 16, 10, seed=5)) as of_run, opened(path, plain_model, seed=5) as given:
        assert [of_run.train_prompt(at).source for at in range(100)] == [given.train_prompt(at).source for at in range(100)]


async def test_the_chat_template_is_applied_when_there_is_one(write: Write, chat_model: Path, plain_model: Path) -> None:
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    own = [{"role": "system", "content": "mine"}, {"role": "user", "content": "d"}]
    path = write({"prompt": "hi", "answer": 0}, {"prompt": talk, "answer": 0}, {"prompt": own, "answer": 0})
    async with opened(path, chat_model, shuffle=False) as task:
        assert spelled(chat_model, task.train_prompt(0)) == "<|user|>hi<|assistant|>"
        assert spelled(chat_model, task.train_prompt(1)) == "<|user|>a<|assistant|>b<|user|>c<|assistant|>"
    options: dict[str, Any] = {"system_prompt": "S", "template_arguments": {"suffix": "!"}}
    async with opened(path, chat_model, shuffle=False, **options) as task:
        assert spelled(chat_model, task.train_prompt(0)) == "<|system|>S<|user|>hi<|assistant|>!"
        assert spelled(chat_model, task.train_prompt(2)) == "<|system|>mine<|user|>d<|assistant|>!"
    async with opened(path, chat_model, shuffle=False, chat_template=False) as task:
        assert spelled(chat_model, task.train_prompt(0)) == "hi"
    async with opened(path, plain_model, shuffle=False) as task:
        assert spelled(plain_model, task.train_prompt(0)) == "hi"
        with pytest.raises(OptionError, match=r"train\.jsonl:2: the prompt is a list of messages"):
            task.train_prompt(1)


async def test_a_prompt_that_is_too_long_is_an_error_with_its_line_or_left_out(write: Write, plain_model: Path) -> None:
    path = write({"prompt": "short", "answer": 0}, {"prompt": "much longer", "answer": 0})
    with pytest.raises(DataError, match=r"train\.jsonl:2: the prompt has 11 tokens, task\.max_prompt_tokens is 10"):
        async with opened(path, plain_model, max_prompt_tokens=10):
            pass
    options: dict[str, Any] = {"max_prompt_tokens": 10, "long_prompts": "skip"}
    async with opened(path, plain_model, eval={"all": path}, **options) as task:
        assert {task.train_prompt(position).source for position in range(10)} == {"train.jsonl:1"}
        assert [prompt.source for prompt in task.eval_sets()[0].prompts] == ["train.jsonl:1"]
    with pytest.raises(DataError, match="every prompt has more than 3 tokens"):
        async with opened(path, plain_model, max_prompt_tokens=3, long_prompts="skip"):
            pass


async def test_a_prompt_that_the_models_context_has_no_room_for_is_an_error(write: Write, plain_model: Path) -> None:
    path = write({"prompt": "short", "answer": 0}, {"prompt": "x" * 4096, "answer": 0})
    with pytest.raises(DataError, match=r"train\.jsonl:2: the prompt has 4096 tokens, what the model's context leaves"):
        async with opened(path, plain_model):
            pass


async def test_eval_sets_have_their_names_files_and_sampling(write: Write, plain_model: Path) -> None:
    train = write({"prompt": "a", "answer": 0})
    easy = write({"prompt": "b", "answer": 1}, {"prompt": "c", "answer": 2}, name="easy.jsonl")
    hard = write({"prompt": "d", "answer": 3}, name="hard.jsonl")
    async with opened(train, plain_model, eval={"easy": easy, "hard": hard}) as task:
        first, second = task.eval_sets()
        assert (first.name, second.name) == ("easy", "hard")
        assert [(prompt.prompt_id, prompt.source) for prompt in first.prompts] == [(0, "easy.jsonl:1"), (1, "easy.jsonl:2")]
        assert (first.params.temperature, first.params.max_new_tokens, first.samples_per_prompt) == (0.0, 33, 1)
    options: dict[str, Any] = {"eval_temperature": 0.7, "eval_samples_per_prompt": 8, "eval_max_new_tokens": 5}
    async with opened(train, plain_model, eval={"hard": hard}, **options) as task:
        (hard_set,) = task.eval_sets()
        assert (hard_set.params.temperature, hard_set.params.max_new_tokens, hard_set.samples_per_prompt) == (0.7, 5, 8)
    async with opened(train, plain_model) as task:
        assert task.eval_sets() == ()


async def test_an_eval_set_may_have_settings_of_its_own_beside_the_common_ones(write: Write, plain_model: Path) -> None:
    train = write({"prompt": "a", "answer": 0})
    rows = write(*[{"prompt": letter, "answer": 1} for letter in "bcdef"], name="rows.jsonl")
    own = {"path": rows, "temperature": 0.7, "samples_per_prompt": 8, "limit": 3, "pass_reward": 0.5, "top_p": 0.9}
    options: dict[str, Any] = {"eval": {"greedy": rows, "sampled": own}, "eval_top_k": 20, "eval_max_new_tokens": 5}
    async with opened(train, plain_model, **options) as task:
        greedy, sampled = task.eval_sets()
    assert (greedy.params, greedy.samples_per_prompt, len(greedy.prompts)) == (SamplingParams(5, 0.0, 1.0, 20), 1, 5)
    assert (sampled.params, sampled.samples_per_prompt, sampled.pass_reward) == (SamplingParams(5, 0.7, 0.9, 20), 8, 0.5)
    assert [prompt.source for prompt in sampled.prompts] == ["rows.jsonl:1", "rows.jsonl:2", "rows.jsonl:3"]


async def test_a_set_with_more_tokens_has_less_room_for_its_prompts(write: Write, plain_model: Path) -> None:
    train = write({"prompt": "short", "answer": 0})
    rows = write({"prompt": "x" * 3000, "answer": 0}, name="rows.jsonl")
    with pytest.raises(DataError, match=r"^task\.eval\.long: rows\.jsonl:1: the prompt has 3000 tokens"):
        async with opened(train, plain_model, eval={"short": rows, "long": {"path": rows, "max_new_tokens": 2000}}):
            pass


async def test_exact_is_the_whole_completion_and_nothing_hidden(write: Write, plain_model: Path) -> None:
    async with opened(write({"prompt": "1+1=", "answer": "42"}), plain_model) as task:
        prompt = task.train_prompt(0)
        four, two = AutoTokenizer.from_pretrained(plain_model)("42")["input_ids"]

        async def reward(ids: list[int], status: Status = Status.COMPLETED) -> float:
            return (await task.score_sample(prompt, finished(ids, status))).reward

        assert await reward([four, two, EOS]) == 1.0
        assert await reward([four, two]) == 1.0  # stopped by a stop string or token of the engine's
        assert (await task.score_sample(prompt, saying(plain_model, " 42\n"))).reward == 1.0
        assert await reward([four, two], Status.TRUNCATED) == 0.0
        for ids in ([], [EOS], [four, EOS], [four, PAD, two, EOS], [four, UNUSED, two, EOS], [four, two, EOS, EOS], [UNUSED]):
            assert await reward(ids) == 0.0


async def test_regex_compares_the_last_match(write: Write, plain_model: Path) -> None:
    path = write({"prompt": "x", "answer": 42})
    async with opened(path, plain_model, scorer="regex", pattern=r"####\s*(\S+)") as task:
        prompt = task.train_prompt(0)
        for text, reward in [("#### 7\n#### 42", 1.0), ("#### 42\n#### 7", 0.0), ("42", 0.0), ("####  42 so", 1.0), ("", 0.0)]:
            assert await task.score_sample(prompt, saying(plain_model, text)) == Score(reward)
    async with opened(path, plain_model, scorer="regex", pattern=r"\d+") as task:
        assert await task.score_sample(task.train_prompt(0), saying(plain_model, "is it 7? no, 42!")) == Score(1.0)


async def test_a_catastrophic_pattern_is_killed(write: Write, plain_model: Path) -> None:
    """Field report 42."""
    options: dict[str, Any] = {"scorer": "regex", "pattern": r"^(a+)+$", "scoring_timeout": 1.0}
    async with opened(write({"prompt": "x", "answer": "aa"}), plain_model, **options) as task:
        prompt = task.train_prompt(0)
        hostile = await task.score_sample(prompt, saying(plain_model, "a" * 64 + "b"))
        assert hostile == Score(0.0, "scorer killed after 1 s")
        assert await task.score_sample(prompt, saying(plain_model, "aa")) == Score(1.0)


async def test_math_knows_equal_expressions(write: Write, plain_model: Path) -> None:
    rows = [("1/2", r"so \boxed{0.5}", 1), ("1/2", "it is 2", 0), ("1,234", "The answer is 1234.", 1), ("2x+2", "$2(x+1)$", 1)]
    rows += [(r"\frac{3}{4}", r"$\frac{6}{8}$", 1), ("$x=3$", "we get $3$", 1), ("72", "", 0), ("72", "no idea", 0)]
    path = write(*[{"prompt": "x", "answer": answer} for answer, _, _ in rows])
    async with opened(path, plain_model, scorer="math", scoring_timeout=60, shuffle=False, scoring_processes=1) as task:
        for position, (_, text, reward) in enumerate(rows):
            assert await task.score_sample(task.train_prompt(position), saying(plain_model, text)) == Score(float(reward)), text


async def test_an_answer_that_is_no_expression_marks_the_sample_with_the_reason(write: Write, plain_model: Path) -> None:
    """Field report 10."""
    async with opened(write({"prompt": "x", "answer": "{"}), plain_model, scorer="math", scoring_timeout=60) as task:
        with pytest.raises(PluginFailed, match=r"ValueError: the answer '\{' is no mathematical expression"):
            await task.score_sample(task.train_prompt(0), saying(plain_model, "3"))


HOSTILE = [
    "9**9**9**9",
    r"\boxed{9^{9^{9^{9^{9}}}}}",
    "The answer is 10^10^10^10",
    "$" + "(" * 5000 + "1" + ")" * 5000 + "$",
    "$" + r"\sqrt{" * 2000 + "x" + "}" * 2000 + "$",
    r"\boxed{" * 20_000,
    "9" * 2_000_000,
    "\0" * 1000 + "\\boxed{\0}",
    "answer " * 20_000,
    r"$\sum_{n=1}^{10^{20}} \frac{1}{n^n}$",
    "__import__('os').system('touch {marker}')",
    r"\boxed{__import__('os').system('touch {marker}')}",
    "the answer is 1+__import__('os').system('touch {marker}')",
    "\ud800",
]


@pytest.mark.slow
def test_hostile_completions_score_0_in_bounded_time_off_the_main_thread(write: Write, plain_model: Path, tmp_path: Path) -> None:
    """Field reports 41 and 42: nothing is run as code, nothing hangs, and the next honest completion is scored."""
    path, marker = write({"prompt": "x", "answer": "42"}), tmp_path / "owned"
    scores: list[Score] = []

    async def score_all() -> None:
        options: dict[str, Any] = {"scorer": "math", "scoring_timeout": 2.0, "scoring_processes": 2}
        async with opened(path, plain_model, **options) as task:
            texts = [text.replace("{marker}", str(marker)) for text in HOSTILE]
            pool = task._pool
            scores.extend(await asyncio.gather(*[pool.submit(text, "42") for text in texts]))
            pool.timeout = 60.0
            scores.append(await task.score_sample(task.train_prompt(0), saying(plain_model, "it is 42")))

    thread = threading.Thread(target=lambda: asyncio.run(score_all()))
    thread.start()
    thread.join(timeout=240)
    assert not thread.is_alive()
    *hostile, honest = scores
    assert [score.reward for score in hostile] == [0.0] * len(HOSTILE)
    assert hostile[0].failure == "scorer killed after 2 s"
    assert honest == Score(1.0)
    assert not marker.exists()


async def test_closing_is_prompt_while_a_scorer_hangs(write: Write, plain_model: Path) -> None:
    """Field report 18."""
    options: dict[str, Any] = {"scorer": "regex", "pattern": r"^(a+)+$", "scoring_timeout": 600.0}
    before = len(psutil.Process().children())
    async with opened(write({"prompt": "x", "answer": "aa"}), plain_model, **options) as task:
        hanging = asyncio.create_task(task.score_sample(task.train_prompt(0), saying(plain_model, "a" * 64 + "b")))
        deadline = time.monotonic() + 60
        while len(psutil.Process().children()) <= before and time.monotonic() < deadline:  # noqa: ASYNC110  (a process has no event)
            await asyncio.sleep(0.01)
        async with asyncio.timeout(30):
            await task.task_close()
            with pytest.raises(Exception, match="was closed"):
                await hanging

"""The prompts, the strict reward, and what is refused before a run."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
from asyncrl import OptionError, RunFacts, Sample, Status, full_mask
from asyncrl_sort_digits import SortDigits, SortDigitsOptions
from asyncrl_sort_digits.problems import BOS, EOS, HELD_OUT, TOKEN_OF, answer_tokens, tokens
from pydantic import ValidationError

RUN = RunFacts(batch_size=16, group_size=16, max_concurrent_samples=256, steps=100, max_new_tokens=7)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with as much of the tokenizer as the task looks at."""
    directory = tmp_path_factory.mktemp("model")
    (directory / "tokenizer.json").write_text(json.dumps({"model": {"vocab": TOKEN_OF}}))
    return directory


def opened(model: Path, **options: int) -> SortDigits:
    task = SortDigits(SortDigitsOptions(**options), RUN)
    task.task_open(model)
    return task


def sample(token_ids: list[int]) -> Sample:
    count = len(token_ids)
    logprobs = np.zeros(count, np.float32)
    return Sample(np.array(token_ids, np.int32), logprobs, full_mask(count), ((0, count),), Status.COMPLETED)


def test_a_prompt_is_bos_digits_equals(model: Path) -> None:
    task = opened(model)
    lengths = set()
    for position in range(200):
        prompt = task.train_prompt(position)
        ids = prompt.token_ids.tolist()
        assert prompt.prompt_id == position and prompt.token_ids.dtype == np.int32
        assert ids[0] == BOS and ids[-1] == TOKEN_OF["="]
        assert all(3 <= token <= 12 for token in ids[1:-1])
        lengths.add(len(ids) - 2)
    assert lengths == {3, 4, 5}


def test_a_prompt_is_a_function_of_seed_and_position(model: Path) -> None:
    """Field report 8: asked again after a restart or for a retry, the prompt is the same to the byte."""
    first, again, other = opened(model, seed=1), opened(model, seed=1), opened(model, seed=2)
    there = [first.train_prompt(position).token_ids.tobytes() for position in range(300)]
    back = [again.train_prompt(position).token_ids.tobytes() for position in reversed(range(300))]
    assert there == back[::-1]
    assert there != [other.train_prompt(position).token_ids.tobytes() for position in range(300)]


def test_the_stream_never_changes_between_releases(model: Path) -> None:
    assert [opened(model, seed=0).train_prompt(position).source for position in (0, 1, 10**9)] == STREAM_OF_SEED_0


def test_the_runs_seed_is_used_when_none_is_given(model: Path) -> None:
    of_run = SortDigits(SortDigitsOptions(), RunFacts(16, 16, 256, 100, seed=7, max_new_tokens=7))
    of_run.task_open(model)
    assert of_run.train_prompt(5).source == opened(model, seed=7).train_prompt(5).source


def test_held_out_prompts_are_never_trained_on(model: Path) -> None:
    task = opened(model, num_eval=HELD_OUT)
    (held_out,) = task.eval_sets()
    digits = {prompt.source for prompt in held_out.prompts}
    assert held_out.name == "held-out" and len(digits) == len(held_out.prompts) == 512
    assert not digits & {task.train_prompt(position).source for position in range(20_000)}


def test_an_evaluation_is_greedy_and_a_smaller_one_is_a_part_of_the_larger(model: Path) -> None:
    (small,), (large,) = opened(model, num_eval=10, seed=1).eval_sets(), opened(model, seed=2).eval_sets()
    assert large.params.temperature == 0.0 and large.params.max_new_tokens == 7
    assert [prompt.source for prompt in small.prompts] == [prompt.source for prompt in large.prompts[:10]]


def test_samples_of_the_held_out_prompts_are_a_set_of_their_own_beside_the_greedy_one(model: Path) -> None:
    greedy, sampled = opened(model, num_eval=10, eval_samples_per_prompt=8).eval_sets()
    assert (greedy.name, greedy.samples_per_prompt, greedy.params.temperature) == ("held-out", 1, 0.0)
    assert (sampled.name, sampled.samples_per_prompt, sampled.params.temperature) == ("held-out-sampled", 8, 1.0)
    assert greedy.prompts == sampled.prompts


def test_even_three_digits_leave_something_to_train_on(model: Path) -> None:
    task = opened(model, min_digits=3, max_digits=3)
    held_out = {prompt.source for prompt in task.eval_sets()[0].prompts}
    assert not held_out & {task.train_prompt(position).source for position in range(2000)}


async def test_only_the_sorted_digits_and_then_the_end_are_right(model: Path) -> None:
    task = opened(model)
    prompt = task.train_prompt(0)
    answer = "".join(sorted(prompt.source))
    right = answer_tokens(answer)
    assert (await task.score_sample(prompt, sample(right))).reward == 1.0
    pad, unused = 0, 60
    wrong = [
        [],
        [EOS],
        right[:-1],
        right[::-1],
        [*right, EOS],
        [*right[:2], unused, *right[2:]],
        [*right[:2], pad, *right[2:]],
        [BOS, *right],
        [*right[:-1], unused, EOS],
        [*right[:-1], TOKEN_OF[" "], EOS],
        answer_tokens(answer + answer[-1]),
        tokens(answer),
    ]
    assert [(await task.score_sample(prompt, sample(ids))).reward for ids in wrong] == [0.0] * len(wrong)


def test_a_token_limit_that_no_answer_fits_in_is_refused(model: Path) -> None:
    run = RunFacts(batch_size=1, group_size=1, max_concurrent_samples=1, steps=1, max_new_tokens=5)
    with pytest.raises(OptionError, match=r"max_new_tokens 5 .* task\.max_digits 5"):
        SortDigits(SortDigitsOptions(), run).check_run(run)
    SortDigits(SortDigitsOptions(max_digits=4), run).check_run(run)


def test_a_model_with_another_tokenizer_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')
    run = RunFacts(16, 16, 256, 100, max_new_tokens=7, model=str(tmp_path))
    with pytest.raises(OptionError, match=r"model: the sort-digits task needs its own tokenizer"):
        SortDigits(SortDigitsOptions(), run).check_run(run)


@pytest.mark.parametrize("options", [{"min_digits": 5, "max_digits": 4}, {"num_eval": 513}, {"min_digits": 2}, {"sed": 1}])
def test_options_that_cannot_work_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValidationError):
        SortDigitsOptions(**options)


def test_every_option_has_help() -> None:
    assert all(field.description for field in SortDigitsOptions.model_fields.values())


async def test_prompt_and_score_cost_microseconds(model: Path) -> None:
    """10,000 prompts and scores; a loose bound that only a wrong complexity breaks."""
    task = opened(model)
    prompt = task.train_prompt(0)
    finished = sample(answer_tokens("123"))
    started = time.process_time()
    for position in range(10_000):
        task.train_prompt(position)
        await task.score_sample(prompt, finished)
    assert time.process_time() - started < 10


STREAM_OF_SEED_0 = ["97521", "5754", "3142"]

"""Groups to flat arrays, and back."""

from __future__ import annotations

import numpy as np
import pytest
from asyncrl.samples import Group, Prompt, Sample, SamplingParams, Spans, Status, full_mask
from asyncrl.training.batch import flatten
from hypothesis import given
from hypothesis import strategies as st

PARAMS = SamplingParams(max_new_tokens=16, temperature=0.7, top_p=0.9, top_k=5)


def sample(tokens: list[int], spans: Spans, reward: float = 0.0, mask: list[bool] | None = None) -> Sample:
    return Sample(
        np.array(tokens, np.int32),
        -np.arange(1, len(tokens) + 1, dtype=np.float32),
        full_mask(len(tokens)) if mask is None else np.array(mask),
        spans,
        Status.COMPLETED,
        reward,
    )


def group(prompt_id: int, prompt: list[int], *samples: Sample) -> Group:
    return Group(Prompt(prompt_id, np.array(prompt, np.int32)), samples)


def test_samples_lie_one_after_the_other_with_their_prompt_first() -> None:
    groups = [
        group(3, [1, 2], sample([10, 11, 12], ((4, 1), (5, 2)), 1.0), sample([13], ((5, 1),), 0.5)),
        group(7, [9], sample([20, 21], ((3, 2),)), sample([22], ((5, 1),))),
    ]
    batch = flatten(groups, version=5, step=2, params=PARAMS)
    assert batch.token_ids.tolist() == [1, 2, 10, 11, 12, 1, 2, 13, 9, 20, 21, 9, 22]
    assert batch.starts.tolist() == [0, 5, 8, 11, 13]
    assert batch.prompt_lengths.tolist() == [2, 2, 1, 1]
    assert batch.versions.tolist() == [-1, -1, 4, 5, 5, -1, -1, 5, -1, 3, 3, -1, 5]
    assert batch.logprobs.tolist() == [0, 0, -1, -2, -3, 0, 0, -1, 0, -1, -2, 0, -1]
    assert batch.loss_mask.tolist() == [False, False, True, True, True, False, False, True, False, True, True, False, True]
    assert batch.rewards.tolist() == [1.0, 0.5, 0.0, 0.0]
    assert batch.groups.tolist() == [0, 0, 1, 1]
    assert batch.prompt_ids.tolist() == [3, 7]
    assert (batch.num_response_tokens, batch.version, batch.step, batch.temperature) == (7, 5, 2, 0.7)
    assert (batch.max_new_tokens, batch.top_p, batch.top_k) == (16, 0.9, 5)
    dtypes = [array.dtype for array in (batch.token_ids, batch.starts, batch.prompt_lengths, batch.loss_mask, batch.logprobs)]
    assert dtypes == [np.int32, np.int64, np.int32, np.bool_, np.float32]
    assert [array.dtype for array in (batch.versions, batch.rewards, batch.groups, batch.prompt_ids)] == [
        np.int32,
        np.float32,
        np.int32,
        np.int64,
    ]


def test_a_masked_sample_leaves_the_loss_but_not_the_denominator() -> None:
    groups = [group(0, [1], sample([2, 3], ((0, 2),)), sample([4], ((0, 1),)))]
    batch = flatten(groups, version=0, step=1, params=PARAMS, keep=np.array([False, True]))
    assert batch.loss_mask.tolist() == [False, False, False, False, True]
    assert batch.num_response_tokens == 3


def test_tokens_that_the_policy_did_not_generate_are_not_counted() -> None:
    groups = [group(0, [1], sample([2, 3, 4], ((0, 3),), mask=[True, False, True]))]
    batch = flatten(groups, version=0, step=1, params=PARAMS)
    assert batch.loss_mask.tolist() == [False, True, False, True]
    assert batch.num_response_tokens == 2


def test_arrays_that_differ_in_length_are_refused_by_prompt_and_sample() -> None:
    good, bad = sample([1, 2], ((0, 2),)), sample([1, 2], ((0, 3),))
    with pytest.raises(ValueError, match="prompt 8 sample 1"):
        flatten([group(8, [1], good, bad)], version=0, step=1, params=PARAMS)


@given(
    st.lists(st.lists(st.integers(0, 9), max_size=6), min_size=1, max_size=8), st.lists(st.integers(0, 9), min_size=1, max_size=4)
)
def test_flattening_loses_no_token(responses: list[list[int]], prompt: list[int]) -> None:
    samples = [sample(tokens, ((0, len(tokens)),) if tokens else ()) for tokens in responses]
    batch = flatten([group(0, prompt, *samples)], version=0, step=1, params=PARAMS)
    for index, tokens in enumerate(responses):
        assert batch.token_ids[batch.starts[index] : batch.starts[index + 1]].tolist() == prompt + tokens

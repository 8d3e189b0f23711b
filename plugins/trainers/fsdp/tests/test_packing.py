"""Micro-batches hold every trained token once, within the budget, in equal number on every rank."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from asyncrl import TrainingBatch
from asyncrl_fsdp.packing import generated_counts, mini_batches, plan

Make = Callable[..., TrainingBatch]


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("budget", [1, 30, 64, 10_000])
def test_every_trained_token_is_dealt_once(make_batch: Make, ranks: int, budget: int) -> None:
    batch = make_batch(groups=3)
    rows = np.arange(batch.num_samples)
    plans = [plan(batch, rows, rank=rank, ranks=ranks, budget=budget) for rank in range(ranks)]
    assert len({len(own) for own in plans}) == 1
    counted = [micro for own in plans for micro in own if micro.counted]
    tokens = np.concatenate([micro.tokens for micro in counted])
    assert sorted(tokens.tolist()) == np.flatnonzero(batch.loss_mask).tolist()
    longest = int(np.diff(batch.starts).max())
    for micro in counted:
        assert micro.input_ids.size <= max(budget, longest)
        # Each position's input token is the one before the token it predicts.
        assert (micro.input_ids.reshape(-1)[micro.positions] == batch.token_ids[micro.tokens - 1]).all()
        assert (batch.starts[micro.samples] < micro.tokens).all()
        assert (micro.tokens < batch.starts[micro.samples + 1]).all()


def test_ranks_get_nearly_equal_tokens(make_batch: Make) -> None:
    batch = make_batch(groups=8)
    plans = [plan(batch, np.arange(batch.num_samples), rank=rank, ranks=2, budget=10_000) for rank in range(2)]
    loads = [sum(int((micro.input_ids > 0).sum()) for micro in own) for own in plans]
    assert abs(loads[0] - loads[1]) <= 17  # the longest sample


def test_samples_without_trained_tokens_need_no_forward_pass(make_batch: Make) -> None:
    batch = make_batch()
    keep = batch.loss_mask.copy()
    keep[batch.starts[3] : batch.starts[6]] = False
    batch = dataclasses.replace(batch, loss_mask=keep)
    plans = plan(batch, np.arange(batch.num_samples), rank=0, ranks=1, budget=10_000)
    assert {3, 4, 5}.isdisjoint(np.concatenate([micro.samples for micro in plans]).tolist())


def test_counts_include_masked_samples(make_batch: Make) -> None:
    batch = make_batch()
    full = generated_counts(batch)
    assert full.tolist() == (np.diff(batch.starts) - batch.prompt_lengths).tolist()
    keep = batch.loss_mask.copy()
    keep[batch.starts[3] : batch.starts[6]] = False
    assert generated_counts(dataclasses.replace(batch, loss_mask=keep)).tolist() == full.tolist()


def test_mini_batches_keep_groups_whole(make_batch: Make) -> None:
    batch = make_batch(groups=5)
    parts = mini_batches(batch, 2)
    assert np.concatenate(parts).tolist() == list(range(batch.num_samples))
    assert set(batch.groups[parts[0]]).isdisjoint(batch.groups[parts[1]])

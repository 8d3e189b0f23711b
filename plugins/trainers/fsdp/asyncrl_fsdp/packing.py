"""From a batch to micro-batches: which samples go through the model together, on which rank. Numpy only, the same on every rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from asyncrl import TrainingBatch
from numpy.typing import NDArray

Rows = NDArray[np.int64]
"""Indices of samples."""


@dataclass(frozen=True)
class MicroBatch:
    """Samples padded on the right to one width. A causal model needs no mask then: no token ever sees the padding behind it.

    Attributes:
        input_ids: int64[rows, width], every sample without its last token, which predicts nothing; 0 on padding.
        positions: int64[n], flat index into `input_ids` of the token that predicts each trained token.
        tokens: int64[n], index of each trained token in the batch's flat arrays.
        samples: int64[n], index of each trained token's sample in the batch.
        counted: False for a micro-batch that only keeps a rank in step with the others; it must not add to the loss.
    """

    input_ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    tokens: NDArray[np.int64]
    samples: NDArray[np.int64]
    counted: bool


def trained_rows(batch: TrainingBatch, rows: Rows) -> Rows:
    """Return those of `rows` that have a trained token; the others need no forward pass."""
    trained = np.concatenate(([0], np.cumsum(batch.loss_mask)))
    return rows[trained[batch.starts[rows + 1]] > trained[batch.starts[rows]]]


def generated_counts(batch: TrainingBatch) -> NDArray[np.int64]:
    """Return int64[samples]: generated tokens of each sample before any masking; they sum to `batch.num_response_tokens`.

    A sample that a filter masked shows no longer which of its tokens were generated; such samples share what is left of the total in
    proportion to their lengths (exact when every token of a response was generated).
    """
    cumulated = np.concatenate(([0], np.cumsum(batch.loss_mask, dtype=np.int64)))
    counts = cumulated[batch.starts[1:]] - cumulated[batch.starts[:-1]]
    masked = counts == 0
    lengths = np.where(masked, np.diff(batch.starts) - batch.prompt_lengths, 0)
    left = batch.num_response_tokens - int(counts.sum())
    if left > 0 and lengths.sum() > 0:
        # Rounded running sums, so that the shares are whole and sum to what is left.
        shares = np.diff(np.concatenate(([0], np.rint(np.cumsum(lengths) * (left / lengths.sum())).astype(np.int64))))
        counts = counts + shares
    return counts


def mini_batches(batch: TrainingBatch, count: int) -> list[Rows]:
    """Cut a batch into `count` parts of whole groups, in order."""
    parts = np.array_split(np.arange(len(batch.prompt_ids)), count)
    return [np.flatnonzero(np.isin(batch.groups, part)) for part in parts]


def deal(lengths: NDArray[np.int64], ranks: int) -> list[Rows]:
    """Deal samples to ranks so that tokens balance: the longest first, each to the rank that has fewest. Returns indices."""
    if ranks == 1:
        return [np.arange(len(lengths))]
    hands: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for index in np.argsort(-lengths, kind="stable"):
        rank = loads.index(min(loads))
        hands[rank].append(int(index))
        loads[rank] += int(lengths[index])
    return [np.array(hand, dtype=np.int64) for hand in hands]


def fill(lengths: NDArray[np.int64], budget: int) -> list[Rows]:
    """Sort samples by length and cut them into micro-batches of at most `budget` tokens, padding included. Returns indices.

    A sample longer than the budget gets a micro-batch of its own.
    """
    order = np.argsort(-lengths, kind="stable")
    bins, start = [], 0
    while start < len(order):
        rows = max(1, budget // max(1, int(lengths[order[start]])))  # the first is the longest, hence the width
        bins.append(order[start : start + rows])
        start += rows
    return bins


def level(bins: list[list[Rows]]) -> list[list[Rows]]:
    """Halve micro-batches until every rank has as many as the one with most, where it has the samples for it."""
    wanted = max(len(own) for own in bins)
    for own in bins:
        while len(own) < wanted:
            largest = max(range(len(own)), key=lambda i: len(own[i]), default=-1)
            if largest < 0 or len(own[largest]) < 2:
                break
            whole = own.pop(largest)
            own[largest:largest] = [whole[: len(whole) // 2], whole[len(whole) // 2 :]]
    return bins


def plan(batch: TrainingBatch, rows: Rows, *, rank: int, ranks: int, budget: int) -> list[MicroBatch]:
    """Return this rank's micro-batches of the samples `rows`; every rank gets the same number, for its collectives to match."""
    rows = trained_rows(batch, rows)
    if not len(rows):
        return []
    widths = batch.starts[rows + 1] - batch.starts[rows] - 1
    bins = level([[hand[chosen] for chosen in fill(widths[hand], budget)] for hand in deal(widths, ranks)])
    own = [build(batch, rows[chosen], counted=True) for chosen in bins[rank]]
    spare = rows[[int(np.argmin(widths))]]
    own += [build(batch, spare, counted=False) for _ in range(max(len(one) for one in bins) - len(own))]
    return own


def build(batch: TrainingBatch, rows: Rows, *, counted: bool) -> MicroBatch:
    """Pad the samples `rows` to one width."""
    starts = batch.starts[rows]
    widths = batch.starts[rows + 1] - starts - 1
    columns = np.arange(int(widths.max()))
    inside = columns < widths[:, None]
    flat = np.where(inside, starts[:, None] + columns, 0)
    # The token behind each input token is what it predicts.
    predicts = inside & batch.loss_mask[flat + inside]
    positions = np.flatnonzero(predicts)
    return MicroBatch(
        input_ids=np.where(inside, batch.token_ids[flat], 0).astype(np.int64),
        positions=positions,
        tokens=flat.reshape(-1)[positions] + 1,
        samples=rows[positions // len(columns)],
        counted=counted,
    )

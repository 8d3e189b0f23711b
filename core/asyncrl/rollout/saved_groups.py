"""Finished groups as plain arrays and back: how a checkpoint holds what was buffered, without pickle.

A prompt is asked from the task again by its position, which gives it with everything its reward needs; only the tokens that the group was
generated from are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.rollout.verdicts import State
from asyncrl.samples import Group, Prompt, Sample, Status, full_mask

Arrays = dict[str, NDArray[Any]]
PLACES = ("buffer", "batch", "waiting")


def pack(state: Mapping[str, Any]) -> tuple[dict[str, Any], Arrays]:
    """Return a `RolloutService.state` as JSON and arrays."""
    places: dict[str, Sequence[Group]] = {
        "buffer": state["buffer"].groups,
        "batch": state["batch"],
        "waiting": state["waiting"],
    }
    counts = {place: len(groups) for place, groups in places.items()}
    saved = {"ledger": state["ledger"], "extra": state["buffer"].extra, "counts": counts}
    return saved, pack_groups([group for place in PLACES for group in places[place]])


def unpack(saved: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], ask: Callable[[int], Prompt]) -> dict[str, Any]:
    """Return the `RolloutService.state` again. `ask` gives the task's prompt at a position."""
    groups = unpack_groups(arrays, ask)
    parts: dict[str, tuple[Group, ...]] = {}
    for place in PLACES:
        count = saved["counts"][place]
        parts[place], groups = tuple(groups[:count]), groups[count:]
    buffer = State(parts["buffer"], saved["extra"])
    return {"ledger": saved["ledger"], "buffer": buffer, "batch": parts["batch"], "waiting": parts["waiting"]}


def pack_groups(groups: Sequence[Group]) -> Arrays:
    """Return arrays with everything of the groups but the prompts' data, one after the other; `*_ends` are where each one's part ends."""
    samples = [sample for group in groups for sample in group.samples]
    return {
        "prompt_ids": np.array([group.prompt_id for group in groups], np.int64),
        "prompt_tokens": _joined([group.prompt.token_ids for group in groups], np.int32),
        "prompt_ends": _ends([len(group.prompt.token_ids) for group in groups]),
        "sample_ends": _ends([len(group.samples) for group in groups]),
        "seconds": np.array([second for group in groups for second in group.seconds], np.float64),
        "seconds_ends": _ends([len(group.seconds) for group in groups]),
        "token_ids": _joined([sample.token_ids for sample in samples], np.int32),
        "logprobs": _joined([sample.logprobs for sample in samples], np.float32),
        "loss_mask": _joined([sample.loss_mask for sample in samples], np.bool_),
        "token_ends": _ends([len(sample.token_ids) for sample in samples]),
        "spans": np.array([span for sample in samples for span in sample.spans], np.int64).reshape(-1, 2),
        "span_ends": _ends([len(sample.spans) for sample in samples]),
        "rewards": np.array([sample.reward for sample in samples], np.float64),
        "statuses": np.array([sample.status.value for sample in samples], np.str_),
        "reasons": np.array([sample.reason for sample in samples], np.str_),
    }


def unpack_groups(arrays: Mapping[str, NDArray[Any]], ask: Callable[[int], Prompt]) -> list[Group]:
    """Return the groups again."""
    held = dict(arrays)  # of an opened file each look at an array would read it
    samples = [
        _sample(held, index, tokens, spans)
        for index, (tokens, spans) in enumerate(zip(_parts(held["token_ends"]), _parts(held["span_ends"]), strict=True))
    ]
    groups = []
    ends = (_parts(held[f"{name}_ends"]) for name in ("prompt", "sample", "seconds"))
    for prompt_id, prompt, mine, seconds in zip(held["prompt_ids"].tolist(), *ends, strict=True):
        pristine, tokens = ask(prompt_id), held["prompt_tokens"][prompt]
        if not np.array_equal(pristine.token_ids, tokens):  # the producer had it generate from others
            pristine = replace(pristine, token_ids=tokens)
        groups.append(Group(pristine, tuple(samples[mine]), tuple(held["seconds"][seconds].tolist())))
    return groups


def _sample(held: Mapping[str, NDArray[Any]], index: int, tokens: slice, spans: slice) -> Sample:
    mask = held["loss_mask"][tokens]
    return Sample(
        token_ids=held["token_ids"][tokens],
        logprobs=held["logprobs"][tokens],
        loss_mask=full_mask(len(mask)) if mask.all() else mask,
        spans=tuple((int(version), int(count)) for version, count in held["spans"][spans]),
        status=Status(str(held["statuses"][index])),
        reward=float(held["rewards"][index]),
        reason=str(held["reasons"][index]),
    )


def _joined(parts: Sequence[NDArray[Any]], dtype: type[np.generic]) -> NDArray[Any]:
    return np.concatenate([np.zeros(0, dtype), *parts]).astype(dtype, copy=False)


def _ends(counts: Sequence[int]) -> NDArray[np.int64]:
    return np.cumsum(np.array(counts, np.int64), dtype=np.int64)


def _parts(ends: NDArray[np.int64]) -> list[slice]:
    stops = ends.tolist()
    return [slice(start, stop) for start, stop in zip([0, *stops], stops, strict=False)]

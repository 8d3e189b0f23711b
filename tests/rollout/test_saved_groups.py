"""What waits to be trained is written as plain arrays and comes back as it was."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from asyncrl.rollout.saved_groups import pack, pack_groups, unpack, unpack_groups
from asyncrl.rollout.verdicts import State
from asyncrl.samples import Group, Prompt, Sample, Status, full_mask


def prompt(position: int) -> Prompt:
    """The task's prompt at a position."""
    return Prompt(position, np.arange(position % 5 + 1, dtype=np.int32), {"answer": [position]}, f"train.jsonl:{position}")


def sample(length: int, *, trained: bool = True, status: Status = Status.COMPLETED, reason: str = "") -> Sample:
    spans = ((3, length - 1), (4, 1)) if length > 1 else ((2, length),) if length else ()
    mask = full_mask(length) if trained else np.arange(length) % 2 == 0
    tokens = np.arange(length, dtype=np.int32) + 100
    return Sample(tokens, -np.sqrt(tokens.astype(np.float32)), mask, spans, status, 1 / 3, reason)


GROUPS = [
    Group(prompt(7), (sample(3), sample(1)), (0.5, 0.25)),
    Group(prompt(0), (sample(4, trained=False), sample(6, status=Status.TRUNCATED))),
    Group(prompt(12), (sample(0, status=Status.FAILED, reason="reward_error: ünknown"), sample(2)), (1.0, 2.0)),
]


def stored(arrays: dict[str, Any]) -> dict[str, Any]:
    """Through a file that refuses pickles."""
    file = io.BytesIO()
    np.savez(file, **arrays)
    file.seek(0)
    with np.load(file, allow_pickle=False) as read:
        return {name: read[name] for name in read.files}


def assert_same(one: Group, other: Group) -> None:
    assert (one.prompt_id, one.prompt.data, one.prompt.source) == (other.prompt_id, other.prompt.data, other.prompt.source)
    assert one.prompt.token_ids.tolist() == other.prompt.token_ids.tolist()
    assert one.seconds == other.seconds
    for mine, theirs in zip(one.samples, other.samples, strict=True):
        for name in ("token_ids", "logprobs", "loss_mask"):
            a, b = getattr(mine, name), getattr(theirs, name)
            assert a.dtype == b.dtype and a.tobytes() == b.tobytes()
        assert (mine.spans, mine.status, mine.reward, mine.reason) == (theirs.spans, theirs.status, theirs.reward, theirs.reason)


def test_groups_come_back_as_they_were() -> None:
    for before, after in zip(GROUPS, unpack_groups(stored(pack_groups(GROUPS)), prompt), strict=True):
        assert_same(before, after)


def test_nothing_is_something_too() -> None:
    assert unpack_groups(stored(pack_groups([])), prompt) == []


def test_a_prompt_comes_from_the_task_with_all_its_reward_needs() -> None:
    asked: list[int] = []

    def ask(position: int) -> Prompt:
        asked.append(position)
        return prompt(position)

    groups = unpack_groups(stored(pack_groups(GROUPS)), ask)
    assert asked == [7, 0, 12]
    assert groups[0].prompt.data == {"answer": [7]}


def test_tokens_that_a_producer_gave_the_prompt_are_kept() -> None:
    longer = Prompt(7, np.array([9, 9, 9], np.int32), {"answer": [7]}, "train.jsonl:7")
    (group,) = unpack_groups(stored(pack_groups([Group(longer, (sample(1),))])), prompt)
    assert group.prompt.token_ids.tolist() == [9, 9, 9]


def test_each_group_comes_back_to_its_place() -> None:
    state = {"ledger": {"cursor": 13}, "buffer": State((GROUPS[0],), {"seen": 3}), "batch": (GROUPS[1],), "waiting": (GROUPS[2],)}
    saved, arrays = pack(state)
    again = unpack(saved, stored(arrays), prompt)
    assert again["ledger"] == {"cursor": 13}
    assert again["buffer"].extra == {"seen": 3}
    for place, group in (("batch", GROUPS[1]), ("waiting", GROUPS[2])):
        assert_same(again[place][0], group)
    assert_same(again["buffer"].groups[0], GROUPS[0])


@pytest.mark.parametrize("name", sorted(pack_groups(GROUPS)))
def test_no_array_holds_objects(name: str) -> None:
    assert not pack_groups(GROUPS)[name].dtype.hasobject

"""The suite of filters: a verdict on any group, by the group alone, and a mask of the right shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from asyncrl.authoring import Plugin
from asyncrl.errors import AsyncrlError
from asyncrl.rollout.verdicts import BatchView
from asyncrl.samples import Group
from asyncrl.testing.base import BaseSuite
from asyncrl.testing.cases import GROUPS, for_all
from asyncrl.testing.groups import make_group
from asyncrl.testing.rules import expect
from asyncrl.testing.runs import cast, require_every_step, simulate_with_faults
from asyncrl.testing.verdicts import check_verdict

BATCHES = st.builds(BatchView, st.lists(GROUPS, min_size=1, max_size=5).map(tuple), st.integers(50, 60))


class FilterSuite(BaseSuite):
    """Contract of a filter: keep or drop a finished group (`judge_group`), leave samples of a batch out of the loss (`mask_batch`).
    It may implement one of them, or both."""

    slot = "filters"

    def test_its_verdicts_are_verdicts(self) -> None:
        """Every answer is KEEP or drop(reason), and the reason is a short word."""
        judge = self._judge()

        @for_all(self.examples, group=GROUPS)
        def rule(group: Group) -> None:
            check_verdict("judge_group", judge(group), retries=False)

        rule()

    def test_the_same_group_gets_the_same_verdict(self) -> None:
        """A verdict depends on the group alone, not on how many were judged before."""
        judge = self._judge()

        @for_all(self.examples, groups=st.lists(GROUPS, min_size=1, max_size=8))
        def rule(groups: list[Group]) -> None:
            first, second = [judge(group) for group in groups], [judge(group) for group in groups]
            different = [index for index, (one, other) in enumerate(zip(first, second, strict=True)) if one != other]
            expect(
                not different,
                promised="the same group gets the same verdict, whatever was judged before",
                happened=lambda: f"a group was judged {first[different[0]]}, and later {second[different[0]]}",
                fix="judge by what the group says, and remember nothing between two questions",
            )

        rule()

    def test_its_mask_fits_the_batch(self) -> None:
        """`mask_batch` answers bool[samples], with the samples counted through the groups in order."""
        mask = self._mask()

        @for_all(self.examples, batch=BATCHES)
        def rule(batch: BatchView) -> None:
            answer = mask(batch)
            samples = sum(len(group.samples) for group in batch.groups)
            expect(
                isinstance(answer, np.ndarray) and answer.dtype == np.bool_ and answer.shape == (samples,),
                promised=f"mask_batch answers a numpy array bool[{samples}] for a batch of {samples} samples",
                happened=f"it answered {_described(answer)}",
                fix="make it by np.array([…], dtype=np.bool_) with one entry a sample: True keeps it in the loss",
            )

        rule()

    def test_the_same_batch_gets_the_same_mask(self) -> None:
        """A mask depends on the batch alone."""
        mask = self._mask()

        @for_all(self.examples, batch=BATCHES)
        def rule(batch: BatchView) -> None:
            first, second = np.asarray(mask(batch)).copy(), np.asarray(mask(batch))
            expect(
                np.array_equal(first, second),
                promised="the same batch gets the same mask",
                happened=lambda: f"asked twice, it answered {first.tolist()} and {second.tolist()}",
                fix="remember nothing between two batches",
            )

        rule()

    def test_a_run_with_it_ends(self) -> None:
        """In a run whose rewards vary, enough groups pass for every step to be trained, also with faults."""
        run = self.facts(steps=8, max_concurrent_samples=32)
        require_every_step(
            lambda: cast(self.make(run=run), run),
            run,
            seeds=2,
            promised="a run with this filter trains all its steps",
            fix="see what the message names; rewards in this run are 0 or 1, and a prompt's mean is anywhere between",
        )

    @classmethod
    def exercise(cls, options: Mapping[str, Any]) -> list[Plugin]:
        """Judge groups of many kinds, mask batches of them, and run it."""
        run = cls.facts(steps=8, max_concurrent_samples=32)
        alone, running = cls.make(options, run), cls.make(options, run)
        host = cls.host(alone)
        groups = tuple(
            make_group(prompt_id, prompt_id % 3, newest=60, rewards=rewards, tokens=tokens)
            for prompt_id, (rewards, tokens) in enumerate(
                (rewards, tokens)
                for rewards in ((0.0,) * 4, (1.0,) * 4, (0.0, 1.0, 0.0, 1.0), (-1.0, 0.5, 0.25, 2.0))
                for tokens in (1, 8, 64)
            )
        )
        for group in groups:
            host.each("judge_group", group=group)
        host.each("mask_batch", batch=BatchView(groups, 61))
        try:
            simulate_with_faults(cast(running, run), run)
        except AsyncrlError as error:
            pytest.skip(f"test_a_run_with_it_ends fails: {error}")
        return [alone.plugin, running.plugin]

    def _judge(self) -> Any:
        host = self.host()
        if not host.has("judge_group"):
            pytest.skip("it has no judge_group")
        return lambda group: host.each("judge_group", group=group)[0][1]

    def _mask(self) -> Any:
        host = self.host()
        if not host.has("mask_batch"):
            pytest.skip("it has no mask_batch")
        return lambda batch: host.each("mask_batch", batch=batch)[0][1]


def _described(answer: object) -> str:
    return f"{answer.dtype}{list(answer.shape)}" if isinstance(answer, np.ndarray) else repr(answer)

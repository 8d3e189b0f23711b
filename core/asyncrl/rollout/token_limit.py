"""No sample is longer than the run allows, whoever made it: a longer one is cut, counted, and said once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from asyncrl.rollout.metrics import RolloutMetrics
from asyncrl.samples import Group, Prompt, Sample

log = logging.getLogger("asyncrl")
REASON = "over_limit"


class TokenLimit:
    """Cuts samples to `most` tokens.

    Args:
        owner: who makes the samples, for the warning.
        discarded: called with (tokens, reason) for what is cut off.
    """

    def __init__(self, most: int, metrics: RolloutMetrics, discarded: Callable[[int, str], None], owner: str) -> None:
        self.most = most
        self._metrics = metrics
        self._discarded = discarded
        self._owner = owner
        self._said = False

    def cut(self, prompt: Prompt, sample: Sample) -> Sample:
        """Return the sample, cut where it is too long."""
        beyond = len(sample.token_ids) - self.most
        if beyond <= 0:
            return sample
        self._metrics.samples_cut.add(1)
        self._metrics.tokens.add(beyond, REASON)
        self._discarded(beyond, REASON)
        if not self._said:
            self._said = True
            log.warning(
                "%s made a sample of %d tokens for prompt %d, more than max_sample_tokens (%d): it is cut there; this is said once, "
                "and rollout/samples_cut counts them",
                self._owner,
                len(sample.token_ids),
                prompt.prompt_id,
                self.most,
            )
        return sample.cut(self.most)

    def cut_group(self, group: Group) -> Group:
        """Return the group with every sample cut that is too long."""
        if all(len(sample.token_ids) <= self.most for sample in group.samples):
            return group
        return replace(group, samples=tuple(self.cut(group.prompt, sample) for sample in group.samples))

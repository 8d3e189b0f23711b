"""`none` keeps groups of any age."""

from __future__ import annotations

import numpy as np
from asyncrl import KEEP, Group, PluginOptions, Prompt, RunFacts
from asyncrl_none import NoBound


def test_a_group_of_any_age_is_kept() -> None:
    policy = NoBound(PluginOptions(), RunFacts(batch_size=1, group_size=1, max_concurrent_samples=1, steps=1))
    group = Group(Prompt(0, np.zeros(1, np.int32)), ())
    assert all(policy.judge_staleness(group, version) is KEEP for version in (0, 1, 1000))

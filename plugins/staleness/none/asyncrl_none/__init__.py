"""Keeps groups of any age."""

from __future__ import annotations

from asyncrl import KEEP, Group, Plugin, Verdict, hookimpl


class NoBound(Plugin):
    """No group is too old."""

    hook_api = 1

    @hookimpl
    def judge_staleness(self, group: Group, version: int) -> Verdict:
        return KEEP

"""How often a run may make anew what died: its rollout actor and its trainer share one limit."""

from __future__ import annotations

import logging

from asyncrl.errors import RunError

log = logging.getLogger("asyncrl")


class Restarts:
    """Attributes: used: restarts so far.

    Args:
        limit: how many there may be (`max_restarts`).
    """

    def __init__(self, limit: int) -> None:
        self.used = 0
        self._limit = limit

    def take(self, what: str, why: str) -> None:
        """Count one more restart and say so.

        Args:
            why: a sentence that names what died.

        Raises:
            RunError: there were as many as there may be.
        """
        if self.used >= self._limit:
            raise RunError(f"{why}, once more often than max_restarts = {self._limit} allows")
        self.used += 1
        log.warning("%s; %s is made anew (restart %d of at most %d)", why, what, self.used, self._limit)

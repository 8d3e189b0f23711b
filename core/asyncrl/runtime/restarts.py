"""What comes back when a part of a run dies or hangs, how often, and what ends the run. `docs/faults.md` says it in full.

| lost                         | what comes back                                       | at most                    | whose work          |
|------------------------------|-------------------------------------------------------|----------------------------|---------------------|
| an engine's server or actor  | a new server, given the present weights               | `max_engine_restarts` each | `supervisor.py`     |
| the rollout actor            | a new one, from the books; the trainer goes on        | `max_restarts`             | `rollout_handle.py` |
| a trainer rank               | all ranks; the run goes on from the newest checkpoint | together with the former   | `run.py`            |
| a node of several            | what was on it, elsewhere, as in the other lines      |                            | `cluster.py`        |
| the evaluator                | a new one, for the next point                         | each time                  | `evaluation.py`     |
| the command                  | nothing; what is left is cleared away                 |                            | `janitor.py`        |

Whatever else fails ends the run: a plugin's exception would come again, and books that do not balance can't be trusted.
"""

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
            raise RunError(
                f"{why}, once more often than max_restarts = {self._limit} allows",
                remedy="asyncrl resume goes on from the newest checkpoint",
            )
        self.used += 1
        log.warning("%s; %s is made anew (restart %d of at most %d)", why, what, self.used, self._limit)

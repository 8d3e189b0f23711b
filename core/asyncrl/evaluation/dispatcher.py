"""Due eval points on the rollout engines: each ends as exactly one record at the step it belongs to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from asyncrl.errors import AsyncrlError, EvalSkip
from asyncrl.evaluation.records import Checkpoint, EvalRecord, EvalResult

log = logging.getLogger("asyncrl")


class BlockingEvals:
    """Evaluates while the training loop waits; a failing point becomes a skip with its reason and never ends the run.

    Args:
        interval: steps between points; 0 is none at all.
        before: whether the initial weights are a point (step 0).
        evaluate: runs the backend on one checkpoint.
        record: told of each settled point.
        timeout: seconds after which a point is given up as ``unhealthy``.
    """

    def __init__(
        self,
        *,
        interval: int,
        before: bool,
        evaluate: Callable[[Checkpoint], Awaitable[EvalResult]],
        record: Callable[[EvalRecord], None],
        timeout: float,
    ) -> None:
        self._interval = interval
        self._before = before
        self._evaluate = evaluate
        self._record = record
        self._timeout = timeout

    async def before_training(self, version: int) -> None:
        if self._interval and self._before:
            await self._point(0, version, 0)

    async def after_step(self, step: int, version: int, *, lag_steps: int, last: bool) -> None:
        """Evaluate if this step is due. `version` was published `lag_steps` steps ago."""
        if self._interval and (last or step % self._interval == 0):
            await self._point(step, version, lag_steps)

    async def _point(self, step: int, version: int, lag_steps: int) -> None:
        clock = asyncio.get_running_loop().time
        started = clock()
        skipped, sets = "", {}
        try:
            result = await asyncio.wait_for(self._evaluate(Checkpoint(step, version, None)), self._timeout)
            sets = dict(result.sets)
        except EvalSkip as skip:
            skipped = skip.message
        except TimeoutError:
            skipped = "unhealthy"
            log.warning("eval of step %d gave no result within %.0f s", step, self._timeout)
        except AsyncrlError as error:
            skipped = "crashed"
            log.warning("eval of step %d failed: %s", step, error)
        seconds = clock() - started
        self._record(EvalRecord(step, version, skipped=skipped, sets=sets, lag_steps=lag_steps, duration_seconds=seconds))

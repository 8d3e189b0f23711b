"""Due eval points: each ends as exactly one record at the step it belongs to, and none of them ends the run."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from asyncrl.errors import EvalSkip
from asyncrl.evaluation.checked import checked_sets
from asyncrl.evaluation.records import Checkpoint, EvalRecord, EvalResult
from asyncrl.evaluation.snapshots import Snapshots
from asyncrl.ledger import reason_word
from asyncrl.rollout.patience import Wait

log = logging.getLogger("asyncrl")
CLOSE_SECONDS = 10.0
"""How long an evaluation that is given up may take to notice."""


@dataclass
class Point:
    """A due point until it is settled. `behind`: trained steps between its version and its step."""

    checkpoint: Checkpoint
    behind: int = 0
    export_seconds: float = 0.0
    recorded: bool = False
    settled: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def step(self) -> int:
        return self.checkpoint.step


class EvalDispatcher:
    """Evaluates due points one after the other, in their order, while training goes on or (`blocking`) waits.

    Args:
        interval: steps between points; 0 is none at all. The last step is always a point, and is never skipped as busy.
        before: whether the initial weights are a point (step 0).
        evaluate: runs the backend on one checkpoint.
        record: told of each settled point.
        snapshots: where the weights of a point come from.
        blocking: whether the training loop waits for each point.
        max_in_flight: points that may be pending, the one that is being evaluated included.
        overflow: when one more is due: wait for the oldest, or record the new one as ``busy``.
        timeout: seconds after which the evaluation of a point is given up as ``unhealthy``.
        wait_warning: seconds after which a wait for a point says so, again and again.
    """

    def __init__(
        self,
        *,
        interval: int,
        before: bool,
        evaluate: Callable[[Checkpoint], Awaitable[EvalResult]],
        record: Callable[[EvalRecord], None],
        snapshots: Snapshots,
        blocking: bool,
        max_in_flight: int = 2,
        overflow: Literal["backpressure", "skip"] = "backpressure",
        timeout: float = 1800.0,
        wait_warning: float = 30.0,
    ) -> None:
        self._interval = interval
        self._before = before
        self._evaluate = evaluate
        self._record = record
        self._snapshots = snapshots
        self._blocking = blocking
        self._max_in_flight = max_in_flight
        self._overflow = overflow
        self._timeout = timeout
        self._wait_warning = wait_warning
        self._pending: deque[Point] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._trained = 0
        self._due: dict[int, int] = {}  # version of every point that was due so far, by step
        self._restored: Mapping[str, Any] | None = None
        self._known: frozenset[int] = frozenset()

    # What the training loop calls ----------------------------------------------------------------------------------------

    async def before_training(self, version: int) -> None:
        """The initial weights are a point, unless this run goes on with another's."""
        if self._interval and self._before and self._restored is None:
            self._due[0] = version
            await self._admit(Point(self._snapshots.initial(version)), export=False, last=False)

    async def after_step(self, step: int, version: int, *, lag_steps: int, last: bool) -> None:
        """Evaluate if this step is due. `version` was published `lag_steps` steps ago."""
        self._trained = step
        if self._interval and (last or step % self._interval == 0):
            self._due[step] = version
            await self._admit(Point(Checkpoint(step, version, None), lag_steps), export=True, last=last)

    async def settle(self) -> None:
        """Wait until every point has its record."""
        while self._pending:
            await self._until_settled(self._pending[0], "the end of the run")

    async def close(self, *, comes_again: bool = False) -> None:
        """Give up what is pending, as ``interrupted``, and remove every snapshot that was exported.

        Args:
            comes_again: the run goes on from a checkpoint, which knows what was pending and gives it its record.
        """
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.wait({self._worker}, timeout=CLOSE_SECONDS)
        for point in self._pending:
            if not point.recorded and not comes_again:
                self._skip(point, "interrupted", "the run ended before it was evaluated")
            point.settled.set()
        self._pending.clear()
        await self._snapshots.close()

    # What checkpoints ask ------------------------------------------------------------------------------------------------

    def steps_in_use(self) -> frozenset[int]:
        """Steps whose points are pending: their checkpoints may hold the weights."""
        return frozenset(point.step for point in self._pending)

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs, as JSON data: points that were due, those that are pending, and what was exported."""
        pending = [
            {
                "step": point.step,
                "version": point.checkpoint.version,
                "behind": point.behind,
                "directory": str(point.checkpoint.directory or ""),
                "marked": point.checkpoint.marked,
                "digest": point.checkpoint.digest,
                "exported": self._snapshots.exported(point.checkpoint),
            }
            for point in self._pending
        ]
        return {"due": [list(one) for one in self._due.items()], "pending": pending, **self._snapshots.state()}

    def restore(self, state: Mapping[str, Any], records: Iterable[Mapping[str, Any]]) -> None:
        """Go on where a run ended; `resumed` does the work.

        Args:
            state: of the dispatcher, from the checkpoint.
            records: the lines of `evals.jsonl` up to the checkpoint's step.
        """
        self._restored = state
        self._known = frozenset(int(record["step"]) for record in records)

    async def resumed(self, step: int, version: int, *, last: bool = False) -> None:
        """Give every point up to the checkpoint's `step` its record, and remove what the dead run exported.

        What has no record is evaluated if its weights are still there, else it is ``crashed``. The checkpoint was written before the
        point of its own step, so that one is due now, with the loaded weights: `version`. `last`: there is no step to train.
        """
        state = self._restored or {}
        await self._snapshots.restore(state)
        self._trained = step
        self._due = {int(due): int(its) for due, its in state.get("due", [])}
        pending = {int(one["step"]): one for one in state.get("pending", [])}
        for due, its in sorted(self._due.items()):
            if due in self._known:
                continue
            point = _still_there(pending[due]) if due in pending and self._interval else None
            if point is not None:
                self._begin(point)
            else:
                self._skip(Point(Checkpoint(due, its, None)), "crashed", "the run died before it was evaluated")
        if step not in self._known:
            await self.after_step(step, version, lag_steps=0, last=last)

    # From a due point to its record --------------------------------------------------------------------------------------

    async def _admit(self, point: Point, *, export: bool, last: bool) -> None:
        """Bring a due point to the queue, or to its record at once."""
        try:
            if len(self._pending) >= self._max_in_flight and self._overflow == "skip" and not last:
                oldest = self._pending[0].step
                self._skip(point, "busy", f"{len(self._pending)} were pending, the oldest that of step {oldest}")
                return
            while len(self._pending) >= self._max_in_flight:
                await self._until_settled(self._pending[0], f"the point of step {point.step}")
            if export and not await self._take_snapshot(point):
                return
        except asyncio.CancelledError:
            if not point.recorded:
                self._skip(point, "interrupted", "the run ended before it was evaluated")
            raise
        self._begin(point)
        if self._blocking:
            await point.settled.wait()  # whoever evaluates says what it waits for

    async def _take_snapshot(self, point: Point) -> bool:
        """Whether the point has its weights now; else it has its record."""
        started = _now()
        try:
            point.checkpoint = await self._snapshots.take(point.step, point.checkpoint.version)
        except EvalSkip as skip:
            self._skip(point, *_reason(skip))
        except Exception as error:
            point.export_seconds = _now() - started
            self._skip(point, "export_failed", _words(error))
        else:
            point.export_seconds = _now() - started if self._snapshots.exports else 0.0
        return not point.recorded

    def _begin(self, point: Point) -> None:
        self._pending.append(point)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.get_running_loop().create_task(self._work(), name="evaluations")

    async def _work(self) -> None:
        while self._pending:
            point = self._pending[0]
            await self._settle(point)
            try:
                await self._snapshots.settled(point.checkpoint)
            except Exception as error:
                log.warning("a snapshot can't be removed: %s", _words(error))
            self._pending.popleft()
            point.settled.set()

    async def _settle(self, point: Point) -> None:
        """Evaluate a point and record it."""
        point.checkpoint = await self._snapshots.whole(point.checkpoint)
        started = _now()
        deadline = asyncio.timeout(self._timeout)
        reason, why, sets = "", "", {}
        try:
            if point.checkpoint.directory is not None:
                point.checkpoint.require()
            async with deadline:
                sets = dict(checked_sets(await self._evaluate(point.checkpoint)))
        except EvalSkip as skip:
            reason, why = _reason(skip)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            reason, why = "crashed", _words(error)  # something that the backend awaited was cancelled, not this
        except Exception as error:
            if deadline.expired():
                reason, why = "unhealthy", f"no result within {self._timeout:g} s"
            else:
                reason, why = "crashed", _words(error)
        self._tell(point, reason, why, sets=sets, duration_seconds=_now() - started)

    def _skip(self, point: Point, reason: str, why: str) -> None:
        self._tell(point, reason, why)

    def _tell(self, point: Point, reason: str, why: str, **measured: Any) -> None:
        """Record a point. One whose result can't be recorded is at least recorded as ``crashed``."""
        point.recorded = True
        record = EvalRecord(
            point.step,
            point.checkpoint.version,
            skipped=reason,
            lag_steps=point.behind + max(0, self._trained - point.step),
            export_seconds=point.export_seconds,
            detail={"why": why} if why else {},
            **measured,
        )
        if reason:
            log.warning("the evaluation of step %d is skipped: %s%s", point.step, reason, f": {why}" if why else "")
        try:
            self._record(record)
        except Exception as error:
            log.warning("the evaluation of step %d can't be recorded: %s", point.step, _words(error))
            if not reason:
                self._tell(point, "crashed", f"its result can't be recorded: {_words(error)}")

    async def _until_settled(self, point: Point, who: str) -> None:
        wait = Wait(
            self._wait_warning,
            lambda seconds: log.warning(
                "%s has waited %.0f s for the evaluation of step %d (version %d), the oldest of %d that are pending",
                *(who, seconds, point.step, point.checkpoint.version, len(self._pending)),
            ),
            lambda: f"the evaluation of step {point.step}",
        )
        wait.begin()
        try:
            await point.settled.wait()
        finally:
            wait.end()


def _still_there(pending: Mapping[str, Any]) -> Point | None:
    """Return a pending point of a dead run, unless its weights were exported, which is over with the run, or are not complete."""
    directory = Path(pending["directory"]) if pending["directory"] else None
    checkpoint = Checkpoint(
        int(pending["step"]), int(pending["version"]), directory, marked=pending["marked"], digest=pending["digest"]
    )
    try:
        if pending["exported"] or directory is None:
            return None
        checkpoint.require()
    except EvalSkip:
        return None
    return Point(checkpoint, int(pending["behind"]))


def _now() -> float:
    return asyncio.get_running_loop().time()


def _reason(skip: EvalSkip) -> tuple[str, str]:
    """The reason in one word, and what it says beside it."""
    _, _, why = skip.message.partition(":")
    return reason_word(skip.message), why.strip()


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__

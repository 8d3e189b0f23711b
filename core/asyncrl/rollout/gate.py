"""The gate around any buffer: judging at put and at take, waiting on both sides, and the fate of what does not pass."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from operator import attrgetter

from asyncrl.authoring import RunFacts
from asyncrl.errors import PluginFailed, RunError
from asyncrl.host import Host
from asyncrl.ledger import Ledger, reason_word
from asyncrl.rollout.claims import ANY, Claims
from asyncrl.rollout.metrics import RolloutMetrics
from asyncrl.rollout.patience import Wait
from asyncrl.rollout.store import GroupStore
from asyncrl.rollout.verdicts import KEEP, Verdict
from asyncrl.samples import Group

log = logging.getLogger("asyncrl")

FAILED_BATCHES = 8
"""So many batches of failed groups in a row end the run, but never fewer than two rounds of all that is in flight."""
HOPELESS_BATCHES = 1000
"""So many batches of groups that end untrained while the trainer waits for one batch end the run."""

REWARD = attrgetter("reward")
PROMPT_ID = attrgetter("prompt.prompt_id")


class Gate:
    """Groups come in by `put` and leave by `take_groups`; both are O(1) a group and driven by events.

    Args:
        on_unused: ``drop`` or ``retry``: what happens to an aborted group's prompt.
        wait_warning: seconds after which a wait says what it waits for, again and again.

    Attributes:
        batch: groups taken for the batch being assembled; a cancelled take leaves them here for the next one.
        waiting: finished groups that found the buffer full, first come first served.
        trainer_waiting: whether a take is under way.
        on_change: called whenever the load may have changed; set by the producer loop.
        stuck: says why nothing more can come, or ''; set by the producer loop.
    """

    def __init__(
        self,
        host: Host,
        ledger: Ledger,
        claims: Claims,
        facts: RunFacts,
        metrics: RolloutMetrics,
        *,
        on_unused: str,
        wait_warning: float,
    ) -> None:
        self.store = GroupStore(host, ledger)
        self.batch: list[Group] = []
        self.waiting: deque[Group] = deque()
        self.trainer_waiting = False
        self.version = 0  # that the trainer is about to improve; may rise while a batch is taken
        self.failure: Exception | None = None
        self.on_change: Callable[[], None] = lambda: None
        self.stuck: Callable[[], str] = lambda: ""
        self._host = host
        self._ledger = ledger
        self._claims = claims
        self._facts = facts
        self._metrics = metrics
        self._on_unused = on_unused
        self._judge_staleness = host.one("judge_staleness")
        self._has_filters = host.has("judge_group")
        self._is_observed = host.has("on_group_finished")
        self._rewards: list[float] = []
        self._failures_in_a_row = 0
        self._lost: Counter[str] = Counter()
        self._empty_wait = Wait(wait_warning, self._trainer_waits, self._trainers_wait)
        self._full_wait = Wait(wait_warning, self._producer_waits, lambda: "room in the buffer")
        self._arrival: asyncio.Future[None] | None = None
        self._wanted = ""
        self._call = ANY
        self._stuck_before: tuple[str, int] | None = None

    def put(self, group: Group) -> None:
        """Take in a finished group: refuse it, store it, or have it wait for room."""
        if self._is_observed:
            self._host.observe("on_group_finished", group=group)
        reason = group.aborted or ("empty" if group.oldest_version < 0 else "")
        if reason:
            self.abandon(group.prompt_id, reason, group)
            self.on_change()
            return
        self._failures_in_a_row = 0
        self._rewards.extend(map(REWARD, group.samples))
        if self._has_filters and (refusal := self._refusal(group)):
            self.drop(group.prompt_id, refusal, group)
        elif self.waiting or not self._stored(group):
            self.waiting.append(group)
            self._full_wait.begin()
        self._arrived()
        self.on_change()

    def abandon(self, prompt_id: int, reason: str, group: Group | None = None) -> None:
        """Give up what was produced for a prompt: drop it, or issue it again, as `on_unused` says.

        When nothing but such groups comes for several batches, the run ends: it would go on for ever.
        """
        self._failures_in_a_row += 1
        self._arrived()
        in_flight = self._facts.max_concurrent_samples // self._facts.group_size
        if self._failures_in_a_row >= max(FAILED_BATCHES * self._facts.batch_size, 2 * in_flight):
            self.fail(RunError(f"the last {self._failures_in_a_row} groups all failed, this one with {reason}"))
        if self._on_unused == "retry":
            self._issue_again(prompt_id, reason_word(reason), group)
        else:
            self.drop(prompt_id, reason_word(reason), group)

    def drop(self, prompt_id: int, reason: str, group: Group | None = None) -> None:
        """End a prompt untrained."""
        tokens = self._ledger.drop(prompt_id, reason)
        self._metrics.dropped.add(1, reason)
        self._wasted(tokens, reason, group)
        self._count_lost(reason)
        self._host.observe("on_group_ended", prompt_id=prompt_id, fate=reason, tokens=tokens)

    async def take_groups(self, version: int, wanted: str) -> list[Group]:
        """Assemble a batch for the trainer that is about to improve `version`; the groups stay in `batch` until it is cleared.

        Args:
            wanted: what the groups are for, for warnings.

        Raises:
            AsyncrlError: the failure that ended the producer loop, unchanged; at once, whatever is still buffered.
            PluginFailed: nothing can come any more, because of a scheduler or a buffer.
        """
        if self.trainer_waiting:
            raise RuntimeError("a batch is being taken already")
        self.trainer_waiting, self._wanted, self.version = True, wanted, version
        self._stuck_before = None
        self._lost.clear()
        self._empty_wait.begin()
        try:
            self.on_change()
            await self._fill()
            while self._refuse_stale(self.version):
                await self._fill()
        finally:
            self.trainer_waiting = False
            self._empty_wait.end()
        return sorted(self.batch, key=PROMPT_ID)

    def fail(self, error: Exception) -> None:
        """Have every take raise `error` from now on. The first failure stays."""
        if self.failure is None:
            self.failure = error
            self._arrived()

    def close(self) -> None:
        """Stop the timers."""
        self._empty_wait.end()
        self._full_wait.end()

    def restore(self, batch: Sequence[Group], waiting: Sequence[Group]) -> None:
        """Replace what is held beside the buffer, which is restored already."""
        self.batch = list(batch)
        self.waiting = deque(waiting)
        if self.waiting:
            self._full_wait.begin()
            self._admit()

    def measure(self, version: int) -> None:
        """Write the gauges and waits; cheap at any size."""
        metrics = self._metrics
        metrics.buffer_size.set(self.store.size)
        metrics.buffer_bytes.set(self.store.bytes)
        metrics.groups_waiting.set(len(self.waiting))
        if rewards := self._rewards:
            metrics.reward.observe_sum(len(rewards), sum(rewards), min(rewards), max(rewards))
            rewards.clear()
        metrics.buffered_staleness.observe_sum(*self.store.ages(version))
        metrics.trainer_wait.add(self._empty_wait.take_seconds())
        metrics.producer_wait.add(self._full_wait.take_seconds())
        metrics.tokens_unfinished.set(self._ledger.unfinished_tokens)

    async def _fill(self) -> None:
        while len(self.batch) < self._facts.batch_size:
            if self.failure is not None:
                raise self.failure
            group = self._next(self.version)
            admitted = self._admit() if self.waiting else False
            if group is None:
                if not admitted:
                    self.on_change()
                    await self._next_arrival()
                continue
            self.batch.append(group)
            verdict = self._judge_staleness(group=group, version=self.version)
            if verdict is not KEEP and self._is_refusal(verdict):
                self.batch.pop()
                self._refuse(group, verdict)
        self.on_change()
        if self.failure is not None:
            raise self.failure

    def _next(self, version: int) -> Group | None:
        """Take the group that the next place of the batch is for, wherever it waits; None when it is not there yet."""
        if self._claims.known:
            room = self._facts.batch_size - len(self.batch)
            self._call = self._claims.call(version, room, self.store.versions, (group.oldest_version for group in self.waiting))
        call = self._call
        if self.store.oldest_version <= call.due:
            return self.store.take(version, call.due)
        for group in self.waiting:
            if group.oldest_version <= call.due:
                self.waiting.remove(group)
                self._ledger.buffered(group.prompt_id)
                self._ledger.batched(group.prompt_id)
                return group
        return None if call.only else self.store.take(version)

    def _refuse_stale(self, version: int) -> bool:
        """Ask for every group of the complete batch once more; whether any had to go."""
        kept: list[Group] = []
        refused: list[tuple[Group, Verdict]] = []
        for group in self.batch:
            verdict = self._judge_staleness(group=group, version=version)
            if verdict is not KEEP and self._is_refusal(verdict):
                refused.append((group, verdict))
            else:
                kept.append(group)
        if refused:
            self.batch = kept
            for group, verdict in refused:
                self._refuse(group, verdict)
            self.on_change()
        return bool(refused)

    def _is_refusal(self, verdict: object) -> bool:
        if not isinstance(verdict, Verdict):
            owner = self._host.owner("judge_staleness")
            raise PluginFailed(
                f"{owner} answered judge_staleness with {verdict!r}; right are KEEP, drop(reason) and retry(reason)"
            )
        return verdict.action != "keep"

    def _refuse(self, group: Group, verdict: Verdict) -> None:
        reason = reason_word(verdict.reason or "stale")
        if verdict.action == "retry":
            self._issue_again(group.prompt_id, reason, group)
        else:
            self.drop(group.prompt_id, reason, group)

    def _refusal(self, group: Group) -> str:
        for active, verdict in self._host.each("judge_group", group=group):
            if verdict is KEEP:
                continue
            if not isinstance(verdict, Verdict):
                raise PluginFailed(f"{active} answered judge_group with {verdict!r}; right are KEEP and drop(reason)")
            if verdict.action != "keep":
                return reason_word(verdict.reason or active.name)
        return ""

    def _stored(self, group: Group) -> bool:
        limit, store = self._facts.buffer_bytes, self.store
        if limit and store.size and store.bytes + group.num_bytes > limit:  # alone, a group of any size may enter
            return False
        outcome = store.put(group)
        for evicted in outcome.evicted:
            self.drop(evicted.prompt_id, "evicted", evicted)
        return outcome.stored

    def _admit(self) -> bool:
        """Store what waits, as far as there is room; whether anything was."""
        before = len(self.waiting)
        while self.waiting and self._stored(self.waiting[0]):
            self.waiting.popleft()
        if not self.waiting:
            self._full_wait.end()
        return len(self.waiting) < before

    def _issue_again(self, prompt_id: int, reason: str, group: Group | None) -> None:
        if self._ledger.retries(prompt_id) >= self._facts.max_retries:
            self.drop(prompt_id, reason, group)
            return
        self._metrics.issued_again.add(1, reason)
        self._wasted(self._ledger.issue_again(prompt_id, reason), reason, group)
        self._count_lost(reason)
        self.on_change()

    def _count_lost(self, reason: str) -> None:
        """End the run when it would go on for ever, with groups that end untrained."""
        if not self.trainer_waiting:
            return
        self._lost[reason] += 1
        lost = self._lost.total()
        if lost >= HOPELESS_BATCHES * self._facts.batch_size:
            reasons = ", ".join(f"{reason} {count}" for reason, count in self._lost.most_common())
            self.fail(
                RunError(
                    f"while the trainer waited for {self._wanted}, {lost} groups ended untrained ({reasons}), and "
                    f"{len(self.batch)} of {self._facts.batch_size} were kept"
                )
            )

    def _wasted(self, tokens: int, reason: str, group: Group | None) -> None:
        if tokens:
            self._metrics.tokens.add(tokens, reason)
        for sample in group.samples if group else ():
            self._metrics.length_dropped.observe(len(sample.token_ids))

    async def _next_arrival(self) -> None:
        self._arrival = asyncio.get_running_loop().create_future()
        try:
            await self._arrival
        finally:
            self._arrival = None

    def _arrived(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def _trainers_wait(self) -> str:
        return f"{self._wanted}, of which {len(self.batch)} of {self._facts.batch_size} groups are there"

    def _trainer_waits(self, seconds: float) -> None:
        stuck = self.stuck()
        kept = f"; its places are kept for groups of version {self._call.due} or older, which would become too old"
        log.warning(
            "the trainer has waited %.0f s for %s: %d of %d groups are there, %d are buffered, dropped so far: %s; %s",
            seconds,
            self._wanted,
            len(self.batch),
            self._facts.batch_size,
            self.store.size,
            ", ".join(f"{reason} {count}" for reason, count in self._ledger.dropped.items()) or "none",
            stuck or f"more groups are in flight{kept if self._call.only else ''}",
        )
        now = (stuck, self._ledger.cursor)
        if stuck and now == self._stuck_before:
            self.fail(PluginFailed(f"the trainer waited {seconds:.0f} s for {self._wanted} and nothing more can come: {stuck}"))
        self._stuck_before = now

    def _producer_waits(self, seconds: float) -> None:
        log.warning(
            "%d finished groups have waited %.0f s for room in the buffer (%d groups, %s%s), and no new ones are started; %s",
            len(self.waiting),
            seconds,
            self.store.size,
            self.store.owner,
            f", {self.store.bytes:,} of buffer_bytes = {limit:,}" if (limit := self._facts.buffer_bytes) else "",
            "the trainer waits too: the buffer gives it none" if self.trainer_waiting else "the trainer is busy",
        )

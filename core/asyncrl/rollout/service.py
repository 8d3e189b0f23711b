"""The rollout side as one object: plugins, ledger, gate, producer loop and sampler, behind plain async methods."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from asyncrl.authoring import RunFacts
from asyncrl.errors import BooksError
from asyncrl.evaluation.records import EvalSet
from asyncrl.host import Host
from asyncrl.ledger import Ledger, Place
from asyncrl.metrics import Delta
from asyncrl.rollout.batches import Batches, BatchInfo
from asyncrl.rollout.claims import Claims
from asyncrl.rollout.engine import Generates
from asyncrl.rollout.gate import Gate
from asyncrl.rollout.group_sampler import GroupSampler
from asyncrl.rollout.metrics import RolloutMetrics
from asyncrl.rollout.producer_loop import ProducerLoop
from asyncrl.rollout.record import LOST, HandedOut, Record
from asyncrl.rollout.token_limit import TokenLimit
from asyncrl.samples import SamplingParams
from asyncrl.training.batch import flatten
from asyncrl.training.interfaces import TrainingBatch


class RolloutService:
    """Runs on one event loop; make it there.

    Args:
        host: the plugins of task, producer, scheduler, buffer, staleness, and any filters and observers. The task is open.
        pool: where requests go.
        on_unused: ``drop`` or ``retry``: what happens to an aborted group's prompt.
        wait_warning: seconds after which a wait says what it waits for, again and again.
        stop_timeout: seconds that `stop` grants to what is in flight.
        make_batch: makes a batch of groups, called as `flatten` is.

    Raises:
        PluginLoadError: a slot has no plugin, or a hook no implementation.
    """

    def __init__(
        self,
        host: Host,
        pool: Generates,
        facts: RunFacts,
        *,
        on_unused: str = "drop",
        wait_warning: float = 30.0,
        stop_timeout: float = 10.0,
        make_batch: Callable[..., TrainingBatch] = flatten,
    ) -> None:
        self.ledger = Ledger()
        self.metrics = RolloutMetrics("rollout")
        self._host = host
        self._facts = facts
        self._stop_timeout = stop_timeout
        self._records = 0
        self._score = host.one("score_sample")
        params = SamplingParams(facts.max_new_tokens, facts.temperature, facts.top_p, facts.top_k)
        limit = TokenLimit(facts.token_limit, self.metrics, self.ledger.discarded, host.owner("produce"))
        sampler = GroupSampler(
            pool,
            self._score,
            group_size=facts.group_size,
            params=params,
            max_retries=facts.max_retries,
            metrics=self.metrics,
            discarded=self.ledger.discarded,
            cut=limit.cut,
            seed=facts.seed,
        )
        self._claims = Claims(host, facts)
        self._gate = Gate(host, self.ledger, self._claims, facts, self.metrics, on_unused=on_unused, wait_warning=wait_warning)
        self._loop = ProducerLoop(host, self.ledger, self._gate, self._claims, sampler, limit, facts)
        self._batches = Batches(host, self.ledger, self.metrics, params, make_batch)

    @property
    def tokens_generated(self) -> int:
        """Tokens of every sample that has ended so far."""
        return self.ledger.generated_tokens

    async def start(self) -> None:
        """Begin to generate."""
        self._loop.start()

    async def take_batch(self, version: int, step: int) -> tuple[TrainingBatch, BatchInfo]:
        """Wait for the batch of `step`, for the trainer that is about to improve `version`. Cancelling it loses nothing.

        Raises:
            AsyncrlError: what ended the producer loop, unchanged.
            PluginFailed: nothing can come any more, or the buffer lost a group.
            BooksError: the books do not balance.
        """
        interval = self._facts.publish_interval
        self._claims.steps_left = max(1, self._facts.steps - step + 1)
        self._claims.batches_of_version = interval - (step - 1) % interval
        try:
            groups = await self._gate.take_groups(version, f"the batch of step {step}")
            made = self._batches.hand_out(groups, self._gate.version, step)
            self._gate.batch = []
            self._claims.steps_left = self._facts.steps - step
            self._claims.batches_of_version -= 1
            self._loop.groups_handed_out = self._batches.groups
            self.check()
        except Exception as error:
            self._loop.fail(error)
            raise
        return made

    def trained(self, step: int) -> None:
        """The batch of `step` was trained: its prompts have ended."""
        self._batches.trained(step)
        self.check()

    def on_published(self, version: int) -> None:
        """The engines serve `version`: a new one, or the present one once more because of an engine that came back.

        A new one while a batch is taken comes before its time. The batch will be trained on it, and the next is due when it was.
        """
        if version != self._loop.version:
            self._loop.version = version
            if self._gate.trainer_waiting:
                self._gate.version = version
            else:
                self._claims.batches_of_version = self._facts.publish_interval
        self._loop.wake()

    async def pause_submission(self) -> None:
        """Start no further groups; what is in flight finishes and is buffered. Raises what ended the producer loop."""
        self._loop.paused = True
        if self._gate.failure is not None:
            raise self._gate.failure

    def resume_submission(self) -> None:
        self._loop.paused = False
        self._loop.wake()

    def eval_sampler(self, engines: Generates, one: EvalSet) -> GroupSampler:
        """Return a sampler for an eval set, whose failures do not count among the run's own."""
        return GroupSampler(
            engines,
            self._score,
            group_size=one.samples_per_prompt,
            params=one.params,
            max_retries=self._facts.max_retries,
            metrics=RolloutMetrics("rollout"),
            seed=self._facts.seed,
        )

    def drain_metrics(self) -> list[Delta]:
        """Take the metrics of the rollout side and of its plugins. Cheap however many groups are held."""
        self._gate.measure(self._loop.version)
        self.metrics.samples_in_flight.set(self._loop.samples_in_flight)
        self.metrics.groups_in_flight.set(self._loop.groups_running)
        return [self.metrics.drain(), *self._host.drain()]

    def books(self) -> dict[str, Any]:
        """Return groups and tokens by fate (see `Ledger.books`), and ``staleness: {mean, max}`` of what was trained."""
        mean = self._batches.staleness_sum / self.ledger.trained if self.ledger.trained else 0.0
        return self.ledger.books() | {"staleness": {"mean": mean, "max": self._batches.staleness_max}}

    def check(self) -> None:
        """Raise `BooksError` unless ledger, buffer and gate agree. Running sums only."""
        self.ledger.check()
        self._gate.store.check()
        if self.ledger.count(Place.BUFFERED) != self._gate.store.size:
            held, booked = self._gate.store.size, self.ledger.count(Place.BUFFERED)
            raise BooksError(f"{self._gate.store.owner} holds {held} groups, the ledger says {booked}")

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs: ``ledger`` (JSON), ``buffer`` (`State`), and the groups in ``batch`` and ``waiting``.

        A batch that the trainer has and did not report as trained is not in it: its prompts are issued again.
        """
        return {
            "ledger": self._ledger_state(),
            "buffer": self._gate.store.state(),
            "batch": tuple(self._gate.batch),
            "waiting": tuple(self._gate.waiting),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a former `state`; before `start`. What was in flight is issued again, and so is what a smaller buffer
        leaves out."""
        held = self._gate.store.restore(state["buffer"])
        size = self._facts.batch_size
        batch, waiting = state["batch"][:size], state["batch"][size:] + state["waiting"]
        places = {Place.BUFFERED: held, Place.IN_BATCH: batch, Place.IN_FLIGHT: waiting}
        kept = [(group.prompt_id, group.num_tokens, place) for place, groups in places.items() for group in groups]
        self._restore_ledger(state["ledger"], kept)
        self._gate.restore(batch, waiting)
        interval = self._facts.publish_interval
        done = self._batches.groups // size
        self._claims.batches_of_version = interval - done % interval
        self._claims.steps_left = max(0, self._facts.steps - done)
        self.check()

    def record(self) -> Record:
        """Return the books as they are now, from which `rebuild` goes on should all that is here be lost."""
        self._records += 1
        return Record(
            serial=self._records,
            books=self.books(),
            ledger=self._ledger_state(),
            unfinished_tokens=self.ledger.unfinished_tokens,
            queued=self.ledger.count(Place.QUEUED),
            batches_of_version=self._claims.batches_of_version,
            steps_left=self._claims.steps_left,
            with_trainer=tuple(self._batches.with_trainer),
        )

    def handed_out(self, step: int) -> HandedOut:
        """Return what is booked once the batch of `step`, which the trainer has, was trained."""
        return self._batches.with_trainer[step]

    def rebuild(self, record: Record, held: HandedOut | None) -> None:
        """Go on for a service that was lost; before `start`.

        Args:
            record: the last that is known of its books. Every prompt that was open then is issued again, without counting as a retry,
                and the tokens that it had are wasted.
            held: the batch that the trainer has and that `record` does not know to be trained; its prompts are not issued again.
        """
        kept = zip(held.prompt_ids, held.tokens, strict=True) if held else ()
        self._restore_ledger(record.ledger, [(prompt_id, tokens, Place.IN_BATCH) for prompt_id, tokens in kept])
        self._batches.with_trainer = {held.step: held} if held else {}
        lost = record.unfinished_tokens - self.ledger.unfinished_tokens
        self.ledger.discarded(lost, LOST)
        self.metrics.tokens.add(lost, LOST)
        self.metrics.issued_again.add(self.ledger.count(Place.QUEUED) - record.queued, LOST)
        never_arrived = len(record.with_trainer) - len(self._batches.with_trainer)
        self._batches.groups -= never_arrived * self._facts.batch_size
        self._loop.groups_handed_out = self._batches.groups
        self._claims.batches_of_version = record.batches_of_version + never_arrived
        self._claims.steps_left = record.steps_left + never_arrived
        self._records = record.serial
        self.check()

    def _ledger_state(self) -> dict[str, Any]:
        return self.ledger.state() | {
            "staleness": [self._batches.staleness_sum, self._batches.staleness_max],
            "handed_out": self._batches.groups,
            "version": self._loop.version,
        }

    def _restore_ledger(self, state: dict[str, Any], kept: Iterable[tuple[int, int, Place]]) -> None:
        self.ledger.restore(state, kept)
        self._batches.staleness_sum, self._batches.staleness_max = state["staleness"]
        self._batches.groups = self._loop.groups_handed_out = state["handed_out"]
        self._loop.version = state["version"]

    async def stop(self) -> None:
        """Cancel what is in flight; takers get `Stopped`.

        Raises:
            DeadlineExceeded: something did not end within `stop_timeout` seconds.
            BooksError: a run that had not failed ends with books that do not balance.
        """
        failed_before = self._gate.failure is not None
        self._gate.close()
        await self._loop.stop(self._stop_timeout)
        if not failed_before:
            self.check()

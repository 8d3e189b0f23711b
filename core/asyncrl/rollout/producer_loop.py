"""The producer loop: issues prompts while the scheduler grants it, and hands finished groups to the gate."""

from __future__ import annotations

import asyncio
import logging

from asyncrl.authoring import RunFacts
from asyncrl.errors import DeadlineExceeded, PluginFailed, RequestFailed, Stopped
from asyncrl.host import Host
from asyncrl.ledger import Ledger
from asyncrl.rollout.claims import Claims
from asyncrl.rollout.gate import Gate
from asyncrl.rollout.sampler import Sampler
from asyncrl.rollout.schedule import LoadView
from asyncrl.rollout.token_limit import TokenLimit
from asyncrl.samples import Group, Prompt, Sample

log = logging.getLogger("asyncrl")


class ProducerLoop:
    """Persistent, started once; woken by events, and then O(1) whatever is in flight.

    Attributes:
        samples_in_flight: samples that an engine or a scorer works on; never above `max_concurrent_samples`.
        groups_running: groups that a producer works on.
        version: weight version of the engines.
        groups_handed_out: groups that left in complete batches; kept by the service.
        paused: whether submission is held back.
        started: whether `start` was called.
    """

    def __init__(
        self, host: Host, ledger: Ledger, gate: Gate, claims: Claims, sampler: Sampler, limit: TokenLimit, facts: RunFacts
    ) -> None:
        self.samples_in_flight = 0
        self.groups_running = 0
        self.version = 0
        self.groups_handed_out = 0
        self.paused = False
        self.started = False
        self._host = host
        self._ledger = ledger
        self._gate = gate
        self._claims = claims
        self._sampler = sampler
        self._limit = limit
        self._facts = facts
        self._most_before_start = facts.max_concurrent_samples - facts.group_size
        self._produce = host.one("produce")
        self._quota = host.one("submission_quota")
        self._train_prompt = host.one("train_prompt")
        self._wakeup = asyncio.Event()
        self._tasks: dict[asyncio.Task[None], int] = {}
        self._loop_task: asyncio.Task[None] | None = None
        gate.on_change = self.wake
        gate.stuck = self.why_stuck

    def start(self) -> None:
        self.started = True
        self._loop_task = asyncio.get_running_loop().create_task(self._run(), name="producer loop")
        self.wake()

    def wake(self) -> None:
        """Have the scheduler asked, unless nothing could be started whatever it says."""
        if self.samples_in_flight <= self._most_before_start and self._may_submit():
            self._wakeup.set()

    def fail(self, error: Exception) -> None:
        """End the run: nothing is submitted any more, and the trainer's side gets `error`."""
        self._gate.fail(error)

    async def stop(self, timeout: float) -> None:
        """Cancel everything in flight.

        Raises:
            DeadlineExceeded: something did not end within `timeout` seconds, such as a scorer that ignores its cancellation.
        """
        self.fail(Stopped("the rollout side was stopped"))
        tasks = {*self._tasks, *({self._loop_task} if self._loop_task else ())}
        for task in tasks:
            task.cancel()
        _, left = await asyncio.wait(tasks, timeout=timeout) if tasks else ((), ())
        if left:
            prompts = ", ".join(str(prompt_id) for prompt_id in sorted(self._tasks[task] for task in left if task in self._tasks))
            raise DeadlineExceeded(
                f"the producer did not let go within {timeout:.0f} s after it was cancelled, of prompts {prompts}",
                origin=self._host.owner("produce"),
                remedy="a producer or scorer must not swallow asyncio.CancelledError",
            )

    def why_stuck(self) -> str:
        """Say why nothing more can reach the trainer, or '' while something can."""
        if self.samples_in_flight or self.groups_running:
            return ""
        if self._gate.store.size or self._gate.waiting:
            held, waiting = self._gate.store.size, len(self._gate.waiting)
            return f"{self._gate.store.owner} gives none of the {held} groups it holds ({waiting} wait to enter)"
        if self.paused:
            return ""
        return f"{self._host.owner('submission_quota')} grants no group with nothing in flight and nothing buffered"

    async def _run(self) -> None:
        try:
            while True:
                await self._wakeup.wait()
                self._wakeup.clear()
                self._submit()
        except Exception as error:
            self.fail(error)

    def _may_submit(self) -> bool:
        gate = self._gate
        return self.started and not self.paused and self._claims.steps_left > 0 and not gate.waiting and gate.failure is None

    def _submit(self) -> None:
        """Start groups until the scheduler grants no more, or the cap or a full buffer forbids it."""
        while self._may_submit():
            room = (self._facts.max_concurrent_samples - self.samples_in_flight) // self._facts.group_size
            if room < 1:
                return
            quota = self._quota(load=self._load())
            if not isinstance(quota, int) or quota < 0:
                owner = self._host.owner("submission_quota")
                raise PluginFailed(f"{owner} answered submission_quota with {quota!r}; right is a number of groups, 0 or more")
            if quota == 0:
                return
            for _ in range(min(quota, room)):
                self._start_group()

    def _load(self) -> LoadView:
        facts, gate = self._facts, self._gate
        return LoadView(
            facts.group_size,
            facts.batch_size,
            facts.max_concurrent_samples,
            self.samples_in_flight,
            self.groups_running + len(gate.waiting),
            gate.store.size,
            len(gate.batch),
            self.groups_handed_out,
            self._ledger.cursor,
            gate.trainer_waiting,
            self.version,
            self._claims.steps_left,
            self._claims.batches_to_deadline(self.version),
        )

    def _start_group(self) -> None:
        prompt_id = self._ledger.issue()
        prompt = self._train_prompt(position=prompt_id)
        if not isinstance(prompt, Prompt) or prompt.prompt_id != prompt_id:
            owner = self._host.owner("train_prompt")
            raise PluginFailed(
                f"{owner} answered train_prompt({prompt_id}) with {prompt!r}; right is a Prompt with this prompt_id"
            )
        running = _Running(self, prompt_id, self._facts.group_size, self.version)
        self._claims.started(self.version)
        self.samples_in_flight += self._facts.group_size
        self.groups_running += 1
        task = asyncio.get_running_loop().create_task(self._run_group(prompt, running))
        self._tasks[task] = prompt_id
        task.add_done_callback(self._group_ended)

    async def _run_group(self, prompt: Prompt, running: _Running) -> None:
        group: Group | None = None
        fault = ""
        try:
            group = await self._produce(prompt=prompt, sampler=self._sampler, done=running.done)
            self._check(group, prompt, running.left)
            group = self._limit.cut_group(group)
        except RequestFailed as error:
            log.warning("prompt %d: %s", prompt.prompt_id, error)
            fault = f"request_failed: {error}"
            group = None
        except Exception as error:
            self.fail(error)
            return
        finally:
            self.samples_in_flight -= max(running.left, 0)
            running.left = 0
            self.groups_running -= 1
            self._claims.ended(running.version)
        try:
            if group is not None:
                self._gate.put(group)
            else:
                self._gate.abandon(prompt.prompt_id, fault)
        except Exception as error:
            self.fail(error)
        self.wake()

    def _check(self, group: object, prompt: Prompt, left: int) -> None:
        """Raise `PluginFailed` unless the producer kept its contract."""
        size = self._facts.group_size
        if not isinstance(group, Group) or group.prompt.prompt_id != prompt.prompt_id:
            fault = f"answered with {type(group).__name__} instead of this prompt's Group"
        elif len(group.samples) != size:
            fault = f"made {len(group.samples)} samples where group_size is {size}"
        elif left:
            fault = f"called done for {size - left} samples where group_size is {size}"
        elif any(len(sample.token_ids) != len(sample.logprobs) for sample in group.samples):
            fault = "made a sample whose token_ids and logprobs differ in length"
        else:
            return
        raise PluginFailed(f"{self._host.owner('produce')}, prompt {prompt.prompt_id}: it {fault}")

    def _group_ended(self, task: asyncio.Task[None]) -> None:
        prompt_id = self._tasks.pop(task)
        if task.cancelled() and self._gate.failure is None:
            self.fail(PluginFailed(f"{self._host.owner('produce')} cancelled itself while it produced prompt {prompt_id}"))


class _Running:
    """A group that a producer works on; counts its samples down."""

    __slots__ = ("_loop", "_prompt_id", "left", "version")

    def __init__(self, loop: ProducerLoop, prompt_id: int, samples: int, version: int) -> None:
        self._loop = loop
        self._prompt_id = prompt_id
        self.left = samples
        self.version = version

    def done(self, sample: Sample) -> None:
        """A sample has ended: its slot is free."""
        loop = self._loop
        self.left -= 1
        if self.left < 0:
            owner = loop._host.owner("produce")
            raise PluginFailed(f"{owner}, prompt {self._prompt_id}: it called done for more samples than group_size")
        loop.samples_in_flight -= 1
        loop._ledger.generated(self._prompt_id, min(len(sample.token_ids), loop._limit.most))  # the rest will be cut off
        loop.wake()

"""Which eval sets a run uses, and running them on engines with the run's own producer and reward."""

from __future__ import annotations

import asyncio
import difflib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from asyncrl.errors import EnginesLost, EvalSkip, OptionError, PluginFailed
from asyncrl.evaluation.records import Checkpoint, EvalResult, EvalSet, SetResult
from asyncrl.evaluation.results import summarise, to_read
from asyncrl.host import Host
from asyncrl.rollout.engine import Generates
from asyncrl.rollout.group_sampler import FATAL, NO_SAMPLE
from asyncrl.rollout.sampler import Sampler
from asyncrl.samples import Group, Prompt, Sample, Status

log = logging.getLogger("asyncrl")


def chosen_sets(host: Host, wanted: Sequence[str], *, needed: bool) -> tuple[EvalSet, ...]:
    """Return the sets of the open task that a run evaluates: those that are `wanted`, or all; in the task's order.

    Args:
        needed: whether the run evaluates at all. If not, and none is wanted, the task is not asked.

    Raises:
        OptionError: a set that is wanted does not exist, or a run that evaluates has none.
        PluginFailed: the task's sets are not what they should be.
    """
    if not needed and not wanted:
        return ()
    task, sets = host.active("task"), host.one("eval_sets")()
    _require_sets(sets, host.owner("eval_sets"))
    names = [one.name for one in sets]
    if needed and not names:
        raise OptionError(
            f"{task} has no eval sets",
            origin="task",
            remedy="give it one, see its options, or do not evaluate: eval_interval = 0",
        )
    for name in wanted:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            listed = f"it has {', '.join(names) or 'none'}"
            raise OptionError(
                f"{task} has no eval set {name!r}",
                origin="eval_sets",
                remedy=f"did you mean {near[0]}? {listed}" if near else listed,
            )
    return tuple(one for one in sets if one.name in wanted or not wanted)


def _require_sets(sets: object, owner: str) -> None:
    if not isinstance(sets, tuple | list) or not all(isinstance(one, EvalSet) for one in sets):
        raise PluginFailed(f"{owner} answered eval_sets with {sets!r}; right is a tuple of EvalSet, possibly an empty one")
    doubled = [name for name, count in Counter(one.name for one in sets).items() if count > 1]
    if doubled:
        raise PluginFailed(f"{owner} has two eval sets with the name {doubled[0]!r}; each needs one of its own")
    for one in sets:
        if not len(one.prompts) or one.samples_per_prompt < 1:
            raise PluginFailed(
                f"eval set {one.name!r} of {owner} has {len(one.prompts)} prompts with {one.samples_per_prompt} samples each; "
                "both are at least 1"
            )


class RunEvalSets:
    """The `EvalSets` a backend is handed.

    Args:
        produce: the producer's hook.
        make_sampler: makes a sampler over some engines for a set.
        max_concurrent_samples: cap on samples in flight; a prompt whose samples are more than that runs alone.
        shown_samples: of so many prompts of each set one sample is kept as text.
    """

    def __init__(
        self,
        sets: Sequence[EvalSet],
        rollout_engines: Generates,
        *,
        produce: Callable[..., Awaitable[Group]],
        make_sampler: Callable[[Generates, EvalSet], Sampler],
        max_concurrent_samples: int,
        shown_samples: int = 0,
    ) -> None:
        self.sets = sets
        self.rollout_engines = rollout_engines
        self._produce = produce
        self._make_sampler = make_sampler
        self._max_concurrent_samples = max_concurrent_samples
        self._shown_samples = shown_samples

    @property
    def engines(self) -> Generates:
        """Engines of the backend's own: there are none here."""
        raise EvalSkip("unhealthy: there are no engines of the backend's own")

    async def pin(self, checkpoint: Checkpoint) -> None:
        """Raise `EvalSkip`: there is nothing to pin."""
        checkpoint.require()
        raise EvalSkip("unhealthy: there are no engines of the backend's own")

    async def run(self, engines: Generates) -> EvalResult:
        """Generate and score every set on `engines`, one set after the other.

        A prompt whose producer raised has only failed samples, and the other prompts go on.

        Raises:
            EvalSkip: no engine is left (``unhealthy``), or what the engines raised.
            PluginFailed, EngineError: the producer raised it, and has no group of any prompt to show.
        """
        faults: list[Exception] = []
        prompts = sum(len(one.prompts) for one in self.sets)
        try:
            results = {one.name: await self._run_set(one, engines, faults) for one in self.sets}
        except EnginesLost as lost:
            raise EvalSkip(f"unhealthy: {lost.message}") from lost
        if faults and len(faults) == prompts:
            raise faults[0]
        if faults:
            log.warning("the producer failed for %d of %d eval prompts, first with: %s", len(faults), prompts, faults[0])
        return EvalResult(results)

    async def _run_set(self, one: EvalSet, engines: Generates, faults: list[Exception]) -> SetResult:
        sampler = self._make_sampler(engines, one)
        slots = asyncio.Semaphore(max(1, self._max_concurrent_samples // one.samples_per_prompt))

        async def produce(prompt: Prompt) -> Group:
            async with slots:
                try:
                    return await self._group(prompt, one, sampler)
                except (*FATAL, EvalSkip):
                    raise
                except Exception as error:
                    faults.append(error)
                    return _failed_group(prompt, one, f"producer_error: {error}")

        running = [asyncio.ensure_future(produce(prompt)) for prompt in one.prompts]
        try:
            groups = await asyncio.gather(*running)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        return summarise(groups, pass_reward=one.pass_reward, samples=to_read(groups[: self._shown_samples], one))

    async def _group(self, prompt: Prompt, one: EvalSet, sampler: Sampler) -> Group:
        """Return the prompt's group; raise `PluginFailed` unless the producer kept its contract."""
        try:
            group = await self._produce(prompt=prompt, sampler=sampler, done=_ignore)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise PluginFailed(f"the producer cancelled itself while it produced prompt {prompt.prompt_id}") from None
        if not isinstance(group, Group) or group.prompt.prompt_id != prompt.prompt_id:
            raise PluginFailed(
                f"the producer answered prompt {prompt.prompt_id} with {type(group).__name__} instead of its Group"
            )
        if len(group.samples) != one.samples_per_prompt:
            raise PluginFailed(
                f"the producer made {len(group.samples)} samples of prompt {prompt.prompt_id} where group_size is "
                f"{one.samples_per_prompt}"
            )
        return group


def _ignore(sample: Sample) -> None:
    return None


def _failed_group(prompt: Prompt, one: EvalSet, reason: str) -> Group:
    failed = replace(NO_SAMPLE, status=Status.FAILED, reason=reason)
    return Group(prompt, (failed,) * one.samples_per_prompt)

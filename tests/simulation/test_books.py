"""Random schedules, faults and publications through every combination of first-party plugins: what holds at every moment."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Generator
from itertools import product
from typing import Any

import pytest
from asyncrl import Group, Plugin, Prompt, PutOutcome, RunFacts, Sample, Taken, hookimpl
from asyncrl.errors import OptionError
from asyncrl.fit import check_fit
from asyncrl.host import Host
from asyncrl.plugins import Found, load
from first_party import choices, distributions, first_party, settings_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulated import assert_balanced, facts, host, trained_prompts
from troubled import CASES, Case, StaggeredRun
from watched import Ending, WatchedRun, run_to_its_end

SCHEDULERS, BUFFERS, STALENESS = first_party("scheduler"), first_party("buffer"), first_party("staleness")


pytestmark = pytest.mark.usefixtures("quiet")


class Scores(Plugin):
    """What a buffer by score needs."""

    @hookimpl
    def score_group(self, group: Group) -> float:
        return random.Random(group.prompt_id).random()


def needs_what_is_missing(scheduler: str, staleness: str, buffer_options: dict[str, Any], scored: bool) -> bool:
    """By name, so that it says what is wanted and does not repeat what is done."""
    return (scheduler == "paced" and staleness == "none") or (buffer_options.get("order") == "score" and not scored)


@pytest.mark.parametrize("slot", ["scheduler", "buffer", "staleness"])
def test_every_first_party_plugin_takes_part(slot: str) -> None:
    missing = distributions(slot) - {found.distribution for found in first_party(slot).values()}
    assert not missing, f"not installed, so not tested here: {missing}"


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("buffer", BUFFERS)
@pytest.mark.parametrize("staleness", STALENESS)
@pytest.mark.parametrize("scored", [False, True])
def test_what_lacks_what_it_needs_is_refused_and_nothing_else(scheduler: str, buffer: str, staleness: str, scored: bool) -> None:
    kinds = [load(SCHEDULERS[scheduler]), load(BUFFERS[buffer]), load(STALENESS[staleness])]
    for options in product(*(choices(found) for found in (SCHEDULERS[scheduler], BUFFERS[buffer], STALENESS[staleness]))):
        chosen = zip(("scheduler", "buffer", "staleness"), kinds, options, strict=True)
        plugins = host(facts(), *chosen, *([("observers", Scores, {})] if scored else []))
        if needs_what_is_missing(scheduler, staleness, options[1], scored):
            with pytest.raises(OptionError, match="needs a plugin that implements"):
                check_fit(plugins)
        else:
            check_fit(plugins)


class Story(Plugin):
    """Every prompt's end, as it was told; and what was handed to the trainer."""

    def __init__(self, options: Any, run: RunFacts) -> None:
        super().__init__(options, run)
        self.fates: dict[int, str] = {}
        self.tokens: dict[str, int] = {}
        self.twice: list[int] = []
        self.batches = 0

    @hookimpl
    def on_group_ended(self, prompt_id: int, fate: str, tokens: int) -> None:
        if prompt_id in self.fates:
            self.twice.append(prompt_id)
        self.fates[prompt_id] = fate
        self.tokens[fate] = self.tokens.get(fate, 0) + tokens

    @hookimpl
    def on_batch(self, batch: Any) -> None:
        self.batches += 1


class BufferWatch(Plugin):
    """Looks into the buffer around every put and take: what it may hold, and whom it must give."""

    buffer: Any
    capacity: int

    @hookimpl(wrapper=True)
    def buffer_put(self, group: Group) -> Generator[None, PutOutcome, PutOutcome]:
        before = self.held()
        outcome = yield
        evicted = {one.prompt_id for one in outcome.evicted}
        assert outcome.stored or len(before) == self.capacity
        assert self.held() == (before | {group.prompt_id} if outcome.stored else before) - evicted
        assert len(self.held()) <= self.capacity
        return outcome

    @hookimpl(wrapper=True)
    def buffer_take(self, due: int) -> Generator[None, Taken, Taken]:
        before = self.held()
        is_due = any(group.oldest_version <= due for group in self.buffer.buffer_state().groups)
        answer = yield
        assert bool(answer.groups) == bool(before)
        assert not is_due or answer.groups[0].oldest_version <= due
        assert self.held() == before - {group.prompt_id for group in answer.groups}
        return answer

    def held(self) -> set[int]:
        groups = self.buffer.buffer_state().groups
        ids = {group.prompt_id for group in groups}
        assert len(ids) == len(groups) == self.buffer.buffer_size()
        return ids


def assemble(case: Case, chosen: list[tuple[str, Found, dict[str, Any]]]) -> Host:
    plugins: list[tuple[str, Any, dict[str, Any]]] = [(slot, load(found), options) for slot, found, options in chosen]
    plugins += [("observers", Story, {}), ("observers", Scores, {})]
    if case.closely:
        plugins.append(("observers", BufferWatch, {}))
    if case.filtered and case.group_size > 1:
        plugins.append(("filters", "reward-variance", {}))
    rng = random.Random(case.seed)

    async def reward(prompt: Prompt, sample: Sample) -> float:
        await asyncio.sleep(rng.choice([0.0, 0.0, 0.5]))
        if rng.random() < case.failing / 4:
            raise ValueError("a reward that fails")
        return float(rng.random() < 0.5)

    plugged = host(case.facts, *plugins, reward=reward)
    if case.closely:
        watch = next(active.plugin for active in plugged.actives if isinstance(active.plugin, BufferWatch))
        watch.buffer = plugged.plugin("buffer")
        watch.capacity = watch.buffer.options.capacity(case.batch_size)
    return plugged


# What must hold -----------------------------------------------------------------------------------------------------------


class AtEveryMoment:
    """Called each time before the clock moves."""

    def __init__(self, plugins: Host, scheduler: str, bound: int | None) -> None:
        self.story: Story = next(active.plugin for active in plugins.actives if isinstance(active.plugin, Story))
        self.capacity = plugins.plugin("buffer").options.capacity(plugins.plugin("buffer").run.batch_size)
        self.scheduler = scheduler
        self.bound = bound

    def __call__(self, simulated: WatchedRun) -> None:
        service, run = simulated.service, simulated.facts
        gate, loop, ledger = service._gate, service._loop, service.ledger
        service.check()
        assert_balanced(service.books())
        held = gate.store.state().groups
        buffered, waiting, batch = ([group.prompt_id for group in groups] for groups in (held, gate.waiting, gate.batch))
        trained_now = [prompt_id for handed in service._batches.with_trainer.values() for prompt_id in handed.prompt_ids]
        places = [*buffered, *waiting, *batch, *trained_now, *loop._tasks.values(), *ledger._queue]
        assert sorted(places) == sorted(ledger._open), "each prompt is in one place"
        assert len(self.story.fates) + len(places) == ledger.cursor, "or has ended"
        assert not self.story.twice

        assert sum(engine.in_flight for engine in simulated.engines) <= loop.samples_in_flight <= run.max_concurrent_samples
        assert len(buffered) <= self.capacity
        ages = [group.staleness(simulated.version) for group in held]
        assert gate.store.ages(simulated.version) == (len(ages), sum(ages), min(ages, default=0), max(ages, default=0))
        assert len(batch) <= run.batch_size

        room = (run.max_concurrent_samples - loop.samples_in_flight) // run.group_size
        assert not loop._may_submit() or not room or not loop._quota(load=loop._load()), "what is granted is started at once"
        if gate.trainer_waiting:
            assert loop.groups_running, "who waits waits for somebody"
            place = service._claims.call(
                simulated.version,
                run.batch_size - len(batch),
                gate.store.versions,
                (group.oldest_version for group in gate.waiting),
            )
            assert not any(group.oldest_version <= place.due for group in [*held, *gate.waiting]), (
                "and lets nobody lie who is due"
            )
            assert place.only or not held, "nor anybody else, unless the place is kept"
            assert not place.only or min(service._claims.in_flight) <= place.due, "for somebody who comes"
        if self.scheduler == "paced" and self.bound is not None:
            may_train = min((simulated.version + self.bound + 1) * run.publish_interval, run.steps) - self.story.batches
            assert len(buffered) + len(waiting) + len(batch) + loop.groups_running <= may_train * run.batch_size


def assert_right_in_the_end(case: Case, ending: Ending, moment: AtEveryMoment) -> None:
    simulated, bound = ending.run, moment.bound
    assert ending.error is None
    trained = trained_prompts(simulated)
    assert len(trained) == len(set(trained)) == case.steps * case.batch_size
    assert [batch.version for batch in simulated.batches] == simulated.improved
    ages = [int((batch.version - batch.versions[batch.loss_mask]).max()) for batch in simulated.batches]
    assert min(ages) >= 0
    if moment.scheduler == "lockstep":
        bound = 0
    assert bound is None or max(ages) <= bound
    for batch in simulated.batches:
        assert batch.prompt_ids.tolist() == sorted(batch.prompt_ids.tolist())
    books, fates = simulated.service.books(), moment.story.fates
    assert sorted(prompt_id for prompt_id, fate in fates.items() if fate == "trained") == sorted(trained)
    assert len(fates) + books["unfinished"] == books["issued"]
    tokens = books["tokens"]
    assert tokens["trained"] == moment.story.tokens["trained"] == sum(int(one.loss_mask.sum()) for one in simulated.batches)
    assert sum(tokens.values()) == simulated.service.tokens_generated


COMBINATIONS = [
    (scheduler, buffer, staleness)
    for scheduler, buffer, staleness in product(SCHEDULERS, BUFFERS, STALENESS)
    if not needs_what_is_missing(scheduler, staleness, {}, True)
]


@pytest.mark.parametrize(("scheduler", "buffer", "staleness"), COMBINATIONS)
@settings(max_examples=40, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=CASES, data=st.data())
def test_the_books_balance_whatever_happens(scheduler: str, buffer: str, staleness: str, case: Case, data: st.DataObject) -> None:
    """Field reports 2, 7 and 21: one place each, none trained twice, no token past the bound, cap and capacity kept, every wait ends."""
    found = {"scheduler": SCHEDULERS[scheduler], "buffer": BUFFERS[buffer], "staleness": STALENESS[staleness]}
    chosen = [(slot, each, data.draw(st.sampled_from(settings_of(each)), slot)) for slot, each in found.items()]
    options = {option: value for _, _, each in chosen for option, value in each.items()}
    plugins = assemble(case, chosen)
    check_fit(plugins)
    moment = AtEveryMoment(plugins, scheduler, options.get("max_staleness"))
    ending = run_to_its_end(
        case.facts,
        plugins,
        script=case.script,
        engines=case.engines,
        slots=case.slots,
        request_timeout=600.0,
        deadline=100_000.0,
        look=moment,
        kind=StaggeredRun if case.staggered else WatchedRun,
        pause_mode=case.pause_mode,
        publish_seconds=case.publish_seconds,
        train_seconds=case.train,
        eval_interval=case.eval_interval,
        eval_seconds=5.0,
        max_attempts=3,
        on_unused=case.on_unused,
        faults=[event for trouble in case.troubles for event in trouble.events(case.engines)],
    )
    assert_right_in_the_end(case, ending, moment)
    books = ending.run.service.books()
    if scheduler == "paced" and options["on_stale"] == "wait":
        assert "stale" not in books["dropped"]
        if case.undisturbed and options.get("when_full") != "evict":
            assert books["issued"] == books["trained"] and books["tokens"]["dropped"] == 0

"""Simulated runs of a plugin among the fakes: sizes, long tails, faults, cancelled takes, and a run that is resumed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from asyncrl.authoring import Plugin, RunFacts
from asyncrl.errors import AsyncrlError
from asyncrl.hook_checks import implemented
from asyncrl.host import Active, Host
from asyncrl.rollout.engine import GenerateRequest
from asyncrl.rollout.pool import EnginePool
from asyncrl.rollout.service import RolloutService
from asyncrl.simulation.clock import run_virtual
from asyncrl.simulation.engine import ScriptedEngine
from asyncrl.simulation.run import SimulatedRun
from asyncrl.simulation.script import EngineEvent, Fault, Plan
from asyncrl.simulation.task import ScriptedTask, simulation_host
from asyncrl.testing.fakes import HELPERS, STANDARD, stand_in
from asyncrl.testing.rules import broken, expect

LIMIT = 1_500.0
"""Virtual seconds within which every one of these runs ends; the longest needs some hundreds."""

WAIT_WARNING = 500.0
"""Virtual seconds after which core says what a wait is for; at the second time it ends a run in which nothing can come any more."""

Script = Callable[[GenerateRequest, int], Plan]


def cast(
    active: Active, run: RunFacts, *, beside: Mapping[str, type[Plugin]] | None = None, observers: Iterable[Active] = ()
) -> Host:
    """Return the host of a simulated run: the plugin under test, what it needs, and fakes for the rest.

    Args:
        beside: fakes to take instead of the standard ones, by slot.
        observers: further plugins of any slot with many.
    """
    parts = {slot: kind for slot, kind in {**STANDARD, **(beside or {})}.items() if slot != active.slot}
    more = list(observers)
    offered = {hook for one in more for hook in implemented(type(one.plugin))}
    for hook in active.plugin.needs:
        if hook in HELPERS and hook not in offered:
            slot, kind = HELPERS[hook]
            if slot in STANDARD:
                if hook not in implemented(parts[slot]):
                    parts[slot] = kind
            else:
                more.append(stand_in(slot, kind, run))
    others = [stand_in(slot, kind, run) for slot, kind in parts.items()]
    return simulation_host([active, *others, *more], ScriptedTask(run, prompt_tokens=4))


# Scripts ------------------------------------------------------------------------------------------------------------------


def long_tail(seed: int, longest: int = 64) -> Script:
    """Return requests of 1 to `longest` tokens at 1/8 s, few of them long."""

    def script(request: GenerateRequest, number: int) -> Plan:
        tokens = min(longest, 1 + int(random.Random(seed * 1_000_003 + number).expovariate(4 / longest)))
        return Plan(tokens=tokens, finish_reason="length" if tokens == longest else "stop")

    return script


def troubled(seed: int, share: float = 0.1) -> Script:
    """Return requests as `long_tail` has them, a share of which ends in an error, or is given up by the engine."""
    tail = long_tail(seed)

    def script(request: GenerateRequest, number: int) -> Plan:
        plan, rng = tail(request, number), random.Random(f"{seed} {number}")
        if rng.random() >= share:
            return plan
        fault: Fault = rng.choice(["error", "abort"])
        return Plan(tokens=plan.tokens, fault=fault, fault_after=rng.randrange(8))

    return script


FAULTS = (
    EngineEvent(0, 3.0, "die"),
    EngineEvent(0, 11.0, "revive"),
    EngineEvent(1, 14.0, "hang"),
    EngineEvent(1, 21.0, "revive"),
    EngineEvent(0, 25.0, "slow", 7.0),
    EngineEvent(0, 40.0, "slow", 1.0),
)
"""What two engines go through: a death, a hang, a time of slowness."""


# Runs ---------------------------------------------------------------------------------------------------------------------


def simulate(host: Host, run: RunFacts, *, script: Script, engines: int = 1, slots: int = 64, **options: Any) -> SimulatedRun:
    """Run to the end under the virtual clock and return the run; core checks its books at every step.

    Args:
        slots: of each engine.
        options: of `SimulatedRun`.

    Raises:
        AsyncrlError: what ended the run; `DeadlineExceeded` for one that comes to a standstill.
    """

    async def main() -> SimulatedRun:
        scripted = [ScriptedEngine(f"engine-{index}", slots=slots, script=script) for index in range(engines)]
        simulated = SimulatedRun(host, run, scripted, wait_warning=WAIT_WARNING, **options)
        await simulated.run()
        return simulated

    return run_virtual(main(), limit=LIMIT)


def simulate_with_faults(host: Host, run: RunFacts, seed: int = 0, *, on_unused: str = "retry") -> SimulatedRun:
    """Run on two engines that die, hang and fail, with publications and evaluations; aborted groups are issued again, or dropped."""
    return simulate(
        host,
        run,
        script=troubled(seed),
        engines=2,
        slots=6,
        faults=FAULTS,
        on_unused=on_unused,
        publish_seconds=0.3,
        train_seconds=lambda step: (0.1, 4.0, 1.0)[step % 3],
        eval_seconds=2.0,
        eval_interval=3,
    )


def oldest_age(run: SimulatedRun) -> int:
    """Return the greatest age in versions of any trained token."""
    return max(int((batch.version - batch.versions[batch.loss_mask]).max()) for batch in run.batches)


def unbalanced(run: SimulatedRun) -> str:
    """Say what is wrong with the books of a run that has ended, or ''."""
    books = run.service.books()
    ended = books["trained"] + sum(books["dropped"].values()) + books["unfinished"]
    if books["issued"] != ended:
        return f"{books['issued']} prompts were issued and {ended} are accounted for: {books}"
    trained = [int(prompt_id) for batch in run.batches for prompt_id in batch.prompt_ids]
    if len(trained) != len(set(trained)):
        return f"prompts were trained twice: {sorted({one for one in trained if trained.count(one) > 1})}"
    if len(trained) != run.facts.steps * run.facts.batch_size:
        return f"{len(trained)} groups were trained where {run.facts.steps * run.facts.batch_size} were to be"
    return ""


def require_every_step(
    make_host: Callable[[], Host], run: RunFacts, *, seeds: int, promised: str, fix: str, on_unused: str = "retry"
) -> None:
    """Fail the running test unless runs with faults, one a seed, train every step and account for every prompt.

    Args:
        make_host: returns the plugins of one run.
        promised, fix: what is said when a run ends with an error; see `broken`.
    """
    for seed in range(seeds):
        try:
            fault = unbalanced(simulate_with_faults(make_host(), run, seed, on_unused=on_unused))
        except AsyncrlError as error:
            broken(promised=promised, happened=f"the run ended with {type(error).__name__}: {error}", fix=fix)
        expect(
            not fault,
            promised="every step is trained, and every prompt that was issued is trained once, dropped with a reason, or unfinished",
            happened=fault,
            fix="see what becomes of the groups named; a prompt that is issued again comes with the same prompt id",
        )


def take_and_cancel(host: Host, run: RunFacts, seed: int) -> dict[str, Any]:
    """Train `run.steps` batches, each asked for several times and cancelled after random moments before it is waited for.

    Returns the books of the run and, as ``again``, the prompts that were trained twice. Raises `AsyncrlError` as `simulate` does.
    """

    async def main() -> dict[str, Any]:
        rng = random.Random(seed)
        engine = ScriptedEngine(script=long_tail(seed), slots=run.max_concurrent_samples)
        pool = EnginePool([engine], health_interval=0)
        service = RolloutService(host, pool, run, wait_warning=WAIT_WARNING)
        await service.start()
        trained: list[int] = []
        for step in range(1, run.steps + 1):
            for _ in range(3):
                take = asyncio.ensure_future(service.take_batch(step - 1, step))
                done, _ = await asyncio.wait([take], timeout=rng.choice([0.0, 0.1, 1.0, 3.0]))
                if done:
                    break
                take.cancel()
                await asyncio.wait([take])
                service.check()
            batch, _ = take.result() if done else await service.take_batch(step - 1, step)
            service.trained(step)
            trained += batch.prompt_ids.tolist()
            engine.publish(step)
            service.on_published(step)
            await asyncio.sleep(rng.choice([0.0, 2.0, 8.0]))  # the trainer trains; the buffer fills
        await service.stop()
        again = sorted({one for one in trained if trained.count(one) > 1})
        return service.books() | {"again": again}

    return run_virtual(main(), limit=LIMIT)


def resume(make_host: Callable[[], Host], run: RunFacts, seed: int, lives: Sequence[int] = (3, 2, 4)) -> None:
    """Train some steps, save, lose the process, restore into new plugins, and so on: every life makes its steps.

    Raises:
        AsyncrlError: what ended one of the lives.
    """

    async def main() -> None:
        state: dict[str, Any] | None = None
        step = 0
        for life, steps in enumerate(lives):
            engine = ScriptedEngine(script=long_tail(seed + life))
            engine.publish(step)
            pool = EnginePool([engine], health_interval=0)
            service = RolloutService(make_host(), pool, run, wait_warning=WAIT_WARNING)
            if state is not None:
                service.restore(state)
            await service.start()
            for _ in range(steps):
                step += 1
                await service.take_batch(step - 1, step)
                service.trained(step)
                engine.publish(step)
                service.on_published(step)
                await asyncio.sleep(1.0)
            state = service.state()
            await service.stop()

    run_virtual(main(), limit=LIMIT)

"""One question to a plugin of each slot, with an answer that is JSON: asked here and in another process, it must be the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from asyncrl.authoring import RunFacts
from asyncrl.host import Host
from asyncrl.testing.groups import idle_load, make_group

Extra = Mapping[str, Any]


def answer(host: Host, run: RunFacts, extra: Extra) -> Any:
    """Return what the one plugin of `host` answers to its slot's question.

    Args:
        extra: what the question needs besides, such as the task's model.
    """
    return QUESTIONS[host.actives[0].slot](host, run, extra)


def _buffer(host: Host, run: RunFacts, extra: Extra) -> Any:
    host.one("buffer_put")(group=make_group(3), score=0.5)
    groups = host.one("buffer_take")(version=0, due=-1).groups
    return [host.one("buffer_size")(), [group.prompt_id for group in groups]]


def _scheduler(host: Host, run: RunFacts, extra: Extra) -> Any:
    return host.one("submission_quota")(load=idle_load(run))


def _staleness(host: Host, run: RunFacts, extra: Extra) -> Any:
    verdict = host.one("judge_staleness")(group=make_group(3), version=0)
    return [verdict.action, verdict.reason]


def _filters(host: Host, run: RunFacts, extra: Extra) -> Any:
    verdicts = [verdict for _, verdict in host.each("judge_group", group=make_group(3, rewards=(0.0, 1.0, 0.0, 1.0)))]
    return [[verdict.action, verdict.reason] for verdict in verdicts]


def _producer(host: Host, run: RunFacts, extra: Extra) -> Any:
    from asyncrl.testing.sampling import one_group

    group = asyncio.run(one_group(host, run))
    return [group.prompt_id, [sample.token_ids.tolist() for sample in group.samples]]


def _task(host: Host, run: RunFacts, extra: Extra) -> Any:
    async def ask() -> Any:
        host.one("task_open")(model=Path(extra["model"]))
        try:
            return host.one("train_prompt")(position=5).token_ids.tolist()
        finally:
            if host.has("task_close"):
                await host.one("task_close")()

    return asyncio.run(ask())


def _engine(host: Host, run: RunFacts, extra: Extra) -> Any:
    return asdict(host.one("engine_needs")())


def _hooks(host: Host, run: RunFacts, extra: Extra) -> Any:
    """For slots whose every hook needs a whole run: which hooks are there."""
    from asyncrl.hookspecs import SLOT_HOOKS

    return [hook for hook in SLOT_HOOKS[host.actives[0].slot] if host.has(hook)]


def _logger(host: Host, run: RunFacts, extra: Extra) -> Any:
    """A run that failed before it started."""
    return [len(host.each("log_message", level="info", message="rebuilt")), len(host.each("log_end", summary={}))]


def _observer(host: Host, run: RunFacts, extra: Extra) -> Any:
    return len(host.each("on_run_start", run=run))


QUESTIONS: dict[str, Callable[[Host, RunFacts, Extra], Any]] = {
    "task": _task,
    "producer": _producer,
    "scheduler": _scheduler,
    "buffer": _buffer,
    "filters": _filters,
    "staleness": _staleness,
    "engine": _engine,
    "trainer": _hooks,
    "eval": _hooks,
    "loggers": _logger,
    "observers": _observer,
}

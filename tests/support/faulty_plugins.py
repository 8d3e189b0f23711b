"""First-party plugins that fail in one way each, for runs that shall meet a fault (`faults`)."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import replace

import asyncrl
from asyncrl.training.publication import free_port
from asyncrl_fifo import Fifo
from asyncrl_fsdp import FsdpTrainer
from asyncrl_single_turn import SingleTurn
from asyncrl_sort_digits import SortDigits, SortDigitsOptions
from asyncrl_torch import TorchEngine, TorchEngineOptions
from faulty_proxy import command_of
from pydantic import Field

SLOTS = {
    "asyncrl.buffers": {"broken": "faulty_plugins:BrokenBuffer"},
    "asyncrl.engines": {"proxied": "faulty_plugins:ProxiedEngine"},
    "asyncrl.producers": {"one-short": "faulty_plugins:OneShort", "gives-up": "faulty_plugins:GivesUp"},
    "asyncrl.tasks": {"judged": "faulty_plugins:Judged"},
    "asyncrl.trainers": {"fails-late": "faulty_plugins:FailsLate"},
}
HOURS = 3600.0


class ProxiedOptions(TorchEngineOptions):
    faults: list[str] = Field([], description="What happens to every how manieth request, such as 500:7.")


class ProxiedEngine(TorchEngine):
    """The embedded engine behind a proxy that plays faults."""

    Options = ProxiedOptions
    options: ProxiedOptions

    @asyncrl.hookimpl
    def engine_server(self, place: asyncrl.EnginePlace) -> asyncrl.ServerSpec:
        behind = free_port(place.host)
        real = super().engine_server(replace(place, port=behind))
        proxy = command_of(place.port, behind, self.options.faults, list(real.argv))
        return replace(real, argv=(sys.executable, *proxy), url=f"http://{place.host}:{place.port}")


class JudgedOptions(SortDigitsOptions):
    raises_every: int = Field(0, description="Every how manieth scoring raises; 0 is none.")
    slow_prompt: int = Field(-1, description="The prompt whose scoring takes an hour.")
    stubborn: bool = Field(False, description="Whether that also ignores being cancelled.")


class Judged(SortDigits):
    """Its reward is a judge that may fail or take its time."""

    Options = JudgedOptions
    options: JudgedOptions
    _asked = 0

    @asyncrl.hookimpl
    async def score_sample(self, prompt: asyncrl.Prompt, sample: asyncrl.Sample) -> asyncrl.Score:
        self._asked += 1
        if self.options.raises_every and self._asked % self.options.raises_every == 0:
            raise ValueError("the judge has no opinion")
        while prompt.prompt_id == self.options.slow_prompt:
            try:
                await asyncio.sleep(HOURS)
            except asyncio.CancelledError:
                if not self.options.stubborn:
                    raise
        return await super().score_sample(prompt, sample)


class BrokenBuffer(Fifo):
    @asyncrl.hookimpl
    def buffer_put(self, group: asyncrl.Group) -> asyncrl.PutOutcome:
        raise ValueError("the shelf fell down")


class OneShort(SingleTurn):
    @asyncrl.hookimpl
    async def produce(self, prompt: asyncrl.Prompt, sampler: asyncrl.Sampler, done: asyncrl.SampleDone) -> asyncrl.Group:
        group = await super().produce(prompt, sampler, done)
        return asyncrl.Group(prompt, group.samples[1:])


class GivesUp(SingleTurn):
    """Fails while the trainer waits for the first batch."""

    @asyncrl.hookimpl
    async def produce(self, prompt: asyncrl.Prompt, sampler: asyncrl.Sampler, done: asyncrl.SampleDone) -> asyncrl.Group:
        await asyncio.sleep(1.0)
        raise MemoryError("no room for a group")


class FailsLate(FsdpTrainer):
    """Fails in its second step, after the buffer has filled up."""

    @asyncrl.hookimpl
    def train_batch(self, batch: asyncrl.TrainingBatch) -> asyncrl.StepReport:
        if batch.step == 2:
            time.sleep(5.0)
            raise ArithmeticError("the loss is not a number")
        return super().train_batch(batch)

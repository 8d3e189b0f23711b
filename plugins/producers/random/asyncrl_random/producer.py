"""The producer: completions of drawn lengths, whatever the model would like to write."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from asyncrl import (
    Completion,
    Counter,
    Distribution,
    Group,
    MetricSet,
    OptionError,
    Plugin,
    PluginOptions,
    Prompt,
    RunFacts,
    Sample,
    SampleDone,
    Sampler,
    Status,
    full_mask,
    hookimpl,
)
from asyncrl.simulation.lengths import LognormalLengths
from pydantic import Field


class RandomProducerOptions(PluginOptions):
    mean: float = Field(
        0.0, ge=0, allow_inf_nan=False, description="Mean tokens a completion, before the law is cut; 0 is max_new_tokens / 4."
    )
    sigma: float = Field(
        1.0,
        ge=0,
        le=5,
        description="Standard deviation of the logarithm: 1 is a long tail, 0 makes every completion equally long.",
    )
    min_tokens: int = Field(1, ge=1, description="Tokens of the shortest completion.")
    max_tokens: int = Field(0, ge=0, description="Tokens of the longest completion; 0 is max_new_tokens.")


class RandomProducerMetrics(MetricSet):
    target_tokens = Distribution("Drawn lengths of completions", unit="tokens")
    cut = Counter("Completions that the law made longer than is allowed, and that end there", unit="samples")
    early = Counter("Completions that ended before their length: the engine can't do without the model's own end", unit="samples")


class RandomProducer(Plugin):
    """Generates `group_size` completions of the prompt at once. How long each is, is a pure function of seed, prompt and its place in the
    group: the law of `asyncrl simulate` with the same numbers, sample by sample."""

    hook_api = 1
    Options = RandomProducerOptions
    Metrics = RandomProducerMetrics
    options: RandomProducerOptions
    metrics: RandomProducerMetrics

    def __init__(self, options: RandomProducerOptions, run: RunFacts) -> None:
        super().__init__(options, run)
        self._longest = options.max_tokens or run.max_new_tokens
        self._mean = options.mean or max(1.0, run.max_new_tokens / 4)
        # One token more than the longest, so that a length which was cut is known from one that is just as long.
        self._law = LognormalLengths(max(1.0, self._mean), options.sigma, (self._longest + 1) / max(1.0, self._mean), run.seed)

    @hookimpl
    def check_run(self, run: RunFacts) -> None:
        """Refuse lengths that can't be."""
        if self._longest > run.max_new_tokens:
            raise OptionError(
                f"producer.max_tokens = {self._longest} is more than max_new_tokens = {run.max_new_tokens}",
                origin="producer.max_tokens, max_new_tokens",
                remedy="max_new_tokens is the most that a completion may have",
            )
        for name, value in (("mean", self._mean), ("min_tokens", self.options.min_tokens)):
            if not 1 <= value <= self._longest:
                raise OptionError(
                    f"producer.{name} = {value:g} does not lie in 1 to {self._longest}, the tokens of the longest completion",
                    origin=f"producer.{name}, " + ("producer.max_tokens" if self.options.max_tokens else "max_new_tokens"),
                )

    @hookimpl
    async def produce(self, prompt: Prompt, sampler: Sampler, done: SampleDone) -> Group:
        places = count()  # one that is generated again takes a place behind the group's

        async def one(prompt: Prompt) -> Sample:
            drawn, _ = self._law.sample(prompt.prompt_id, next(places))
            most = min(self._longest, sampler.params.max_new_tokens)  # an eval set's own may be less
            target = min(most, max(self.options.min_tokens, drawn))
            params = replace(sampler.params, max_new_tokens=target, ignore_eos=True)
            completion = await sampler.generate(prompt, prompt.token_ids, params)
            self.metrics.target_tokens.observe(target)
            return await sampler.score(prompt, self._unscored(completion, target, cut=drawn > most))

        return await sampler.group(prompt, one, done)

    def _unscored(self, completion: Completion, target: int, *, cut: bool) -> Sample:
        """Return the sample of a completion: one that has the length it was to have is complete, unless that was cut."""
        tokens = completion.token_ids
        aborted = completion.finish_reason not in ("stop", "length")
        if not aborted:
            self.metrics.cut.add(int(cut))
            self.metrics.early.add(int(len(tokens) < target))
        status = Status.ABORTED if aborted else Status.TRUNCATED if cut else Status.COMPLETED
        reason = "aborted: an engine gave it up" if aborted else ""
        return Sample(tokens, completion.logprobs, full_mask(len(tokens)), completion.spans, status, 0.0, reason)

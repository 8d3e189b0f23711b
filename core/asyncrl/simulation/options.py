"""Options of a simulation: the `[simulate]` table of a run's file. `asyncrl train` checks them and leaves them alone."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from asyncrl.run_options import Contradiction

MOST_SECONDS = 1e6
"""Virtual seconds that one thing may take: eleven days. Beyond, a simulation of fine steps would hardly end."""
MOST_ENGINES = 100_000
MOST_SLOTS = 1_000_000
MOST_TOKENS = 2**31 - 1
MOST_STEPS = 10**9


class FaultOptions(BaseModel):
    """Something that happens to one engine: an entry of `[[simulate.faults]]`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    engine: int = Field(ge=0, lt=MOST_ENGINES, description="Which engine, counted from 0.")
    at: float = Field(ge=0, le=MOST_SECONDS, description="Virtual seconds after the start.")
    kind: Literal["die", "revive", "slow", "hang"] = Field(
        description="die: everything in flight there is lost. revive: it takes requests again. slow: every token takes factor times "
        "as long from then on. hang: it answers nothing until it is revived."
    )
    factor: float = Field(1.0, ge=1e-3, le=1e3, description="For slow: factor on the seconds a token takes; 1 ends it.")


class SimulateOptions(BaseModel):
    """What a simulation must know beside the run's own options. Seconds are virtual."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    # Engines
    engines: int | None = Field(None, ge=1, le=MOST_ENGINES, description="Engines; none is num_engines.")
    slots: int | None = Field(
        None,
        ge=1,
        le=MOST_SLOTS,
        description="Requests that one engine generates at once; none is its share of max_concurrent_samples.",
    )
    tokens_per_second: float = Field(
        50.0,
        ge=1e-3,
        le=1e6,
        description="Tokens a second of one slot of an engine whose slots are all busy; a trace with seconds has its own.",
    )
    load_slowdown: float = Field(
        1.0,
        ge=1,
        le=1e3,
        description="Seconds a token takes in a full engine over those with one request, linear between; 1 is constant.",
    )
    faults: tuple[FaultOptions, ...] = Field(
        (), description="What happens to engines: a list of tables with engine, at, kind (die, revive, slow or hang) and factor."
    )

    # Lengths
    lengths: Literal["constant", "lognormal", "trace"] | None = Field(
        None, description="How the lengths of samples are distributed; none is lognormal, or trace where one is given."
    )
    length_mean: float | None = Field(
        None,
        gt=0,
        le=MOST_TOKENS,
        description="Mean tokens a sample, of the lognormal before it is clipped; none is max_new_tokens / 4.",
    )
    length_sigma: float = Field(1.0, ge=0, le=10, description="Sigma of the lognormal: of the logarithm of the length.")
    length_clip: float = Field(
        4.0,
        ge=0,
        le=1e6,
        description="Longest length of the lognormal in multiples of length_mean, 0 is no clip; max_new_tokens clips too.",
    )
    trace: Path | None = Field(
        None,
        description="Recorded lengths and times: a trace.jsonl, or the directory of a finished run, which gives the times too.",
    )

    # The rest of the run
    train_seconds: float | None = Field(
        None,
        ge=0,
        le=MOST_SECONDS,
        description="Seconds a batch takes in the trainer; none is the trace's (with checkpoints and that part of a publication in which "
        "engines go on), or the mean generation work of one batch.",
    )
    publish_seconds: float | None = Field(
        None,
        ge=0,
        le=MOST_SECONDS,
        description="Seconds for which engines stand still at a publication; none is the trace's, or 0.",
    )
    eval_seconds: float | None = Field(
        None,
        ge=0,
        le=MOST_SECONDS,
        description="Seconds of an evaluation, every eval_interval; none is the trace's, or 0. One on the rollout engines is waited for.",
    )
    export_seconds: float | None = Field(
        None,
        ge=0,
        le=MOST_SECONDS,
        description="Seconds for which training waits for a snapshot, before an evaluation that is not on the rollout engines; none is "
        "the trace's, or 0.",
    )
    steps: int | None = Field(None, ge=1, le=MOST_STEPS, description="Training steps to simulate; none is the run's steps.")
    warmup_steps: int | None = Field(
        None, ge=0, description="First steps that step times, utilisation and staleness leave out; none is a tenth."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> SimulateOptions:
        if self.trace is None and self.lengths == "trace":
            raise Contradiction("lengths = trace needs a trace", options=("lengths",), remedy="write trace = a file or a run")
        if self.trace is not None and self.lengths not in (None, "trace"):
            raise Contradiction(
                f"lengths = {self.lengths} does not use the trace",
                options=("lengths", "trace"),
                remedy="use lengths = trace, or leave trace out",
            )
        if 0 < self.length_clip < 1:
            raise Contradiction(
                f"length_clip = {self.length_clip:g} would cut below the mean",
                options=("length_clip",),
                remedy="use at least 1, or 0 for no clip",
            )
        if self.steps is not None and self.warmup_steps is not None and self.warmup_steps >= self.steps:
            raise Contradiction(
                f"warmup_steps = {self.warmup_steps} leaves nothing of steps = {self.steps}",
                options=("warmup_steps", "steps"),
                remedy=f"warmup_steps can be at most {self.steps - 1}",
            )
        return self

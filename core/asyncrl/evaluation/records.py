"""Eval sets, results and records: every due point ends as exactly one record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from asyncrl.rollout.engine import Generates
from asyncrl.samples import Prompt, SamplingParams


def token_ids_as_text(token_ids: Sequence[int]) -> str:
    """Return the ids themselves, with spaces between them: what there is to read where nobody knows the tokens' text."""
    return " ".join(map(str, token_ids))


@dataclass(frozen=True)
class EvalSet:
    """Held-out prompts under one name, with how to sample them (`samples_per_prompt` each).

    `text` turns token ids into what people read in an `EvalSample`; a task that has a tokenizer brings its own.
    """

    name: str
    prompts: Sequence[Prompt]
    params: SamplingParams
    samples_per_prompt: int = 1
    text: Callable[[Sequence[int]], str] = token_ids_as_text


@dataclass(frozen=True)
class Checkpoint:
    """What is evaluated. `directory` is the snapshot, or None for a backend that measures the engines as they are."""

    step: int
    version: int
    directory: Path | None


@dataclass(frozen=True)
class EvalSample:
    """One completion for people to read, as text (see `EvalSet.text`)."""

    prompt: str
    completion: str
    reward: float
    status: str


@dataclass(frozen=True)
class SetResult:
    """One set's result. `mean_reward` counts samples without a score as 0; rates are fractions of samples; `samples` are a few to
    read, of the same prompts at every point."""

    mean_reward: float
    num_prompts: int
    num_samples: int
    failed: float
    truncated: float
    mean_length: float
    version_mean: float
    mixed_version: float
    samples: tuple[EvalSample, ...] = ()


@dataclass(frozen=True)
class EvalResult:
    """What a backend returns: a result for every set."""

    sets: Mapping[str, SetResult]


class EvalSets(Protocol):
    """Handed to a backend: the sets, and the means to run them on engines with the run's own producer and reward."""

    sets: Sequence[EvalSet]
    rollout_engines: Generates

    async def run(self, engines: Generates) -> EvalResult:
        """Generate and score every set on `engines`."""
        ...


@dataclass(frozen=True)
class EvalRecord:
    """One settled point. `skipped` is '' for a result, else the reason.

    Attributes:
        lag_steps: trained steps between the point's version and the moment it was logged; 0 for one that was on time.
        duration_seconds: evaluation time.
        export_seconds: time the training loop waited for the export; 0 without one.
    """

    step: int
    version: int
    skipped: str = ""
    sets: Mapping[str, SetResult] = field(default_factory=dict)
    lag_steps: int = 0
    duration_seconds: float = 0.0
    export_seconds: float = 0.0
    detail: Mapping[str, Any] = field(default_factory=dict)

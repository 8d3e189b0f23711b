"""What a scripted engine is told: how each request goes, and what happens to whole engines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from asyncrl.rollout.engine import GenerateRequest
from asyncrl.simulation.lengths import Lengths

Fault = Literal["", "error", "hang", "death", "abort"]


@dataclass(frozen=True, slots=True)
class Plan:
    """How one request goes.

    Attributes:
        tokens: tokens it generates.
        first: seconds until generation begins, and again after a pause that retracts it.
        per_token: seconds a token.
        fault: ``error`` answers with an error, ``hang`` never answers, ``death`` takes the whole engine down, ``abort`` gives up with
            what is there; each after `fault_after` tokens.
        finish_reason: ``stop`` or ``length``.
    """

    tokens: int = 8
    first: float = 0.0
    per_token: float = 0.125
    fault: Fault = ""
    fault_after: int = 0
    finish_reason: str = "stop"


@dataclass(frozen=True, slots=True)
class NumberedRequest(GenerateRequest):
    """A request that knows which sample of its group it is for, counted from 0."""

    index: int = 0


@dataclass(frozen=True)
class EngineEvent:
    """Something that happens to one engine.

    Attributes:
        engine: which, counted from 0.
        at: virtual seconds after the start.
        kind: ``die`` loses everything in flight there; ``revive`` lets it take requests again; ``slow`` makes everything take `factor`
            times as long from then on; ``hang`` lets it answer nothing until it is revived.
        factor: for ``slow``; 1 ends it.
    """

    engine: int
    at: float
    kind: Literal["die", "revive", "slow", "hang"]
    factor: float = 1.0


class LengthScript:
    """Plans requests by a law of lengths.

    Args:
        per_token: seconds a token, where the law does not give a sample's seconds.
        first: seconds until generation begins: the prefill.
        limit: most tokens of a request, as `max_new_tokens` is; a sample that the law makes longer is truncated there.
    """

    def __init__(self, lengths: Lengths, *, per_token: float, first: float = 0.0, limit: float = float("inf")) -> None:
        self._sample = lengths.sample
        self._per_token = per_token
        self._first = first
        self._limit = limit

    def __call__(self, request: GenerateRequest, number: int) -> Plan:
        if request.params.ignore_eos:  # whoever asks has a law of its own
            return Plan(request.params.max_new_tokens, self._first, self._per_token, finish_reason="length")
        index = request.index if isinstance(request, NumberedRequest) else number
        tokens, seconds = self._sample(request.affinity, index)
        pace = seconds / tokens if seconds else self._per_token
        if tokens < self._limit:
            return Plan(tokens, self._first, pace)
        return Plan(int(self._limit), self._first, pace, finish_reason="length")

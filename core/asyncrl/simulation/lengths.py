"""How long each sample is: laws of lengths, each a pure function of seed, prompt and the sample's index in its group."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol

from asyncrl.errors import OptionError

STANDARD_NORMAL = NormalDist()
_MASK = (1 << 64) - 1
TWO_TO_MINUS_52 = 2.0**-52
HALF_STEP = 2.0**-53


@dataclass(frozen=True, slots=True)
class RecordedGroup:
    """What was recorded of one group; every tuple that is not empty has one entry a sample.

    Attributes:
        tokens: generated tokens, at least 1 each.
        seconds: time in a slot, from the start of generating to its end; empty where it was not recorded.
        rewards: empty where they were not recorded.
    """

    tokens: tuple[int, ...]
    seconds: tuple[float, ...] = ()
    rewards: tuple[float, ...] = ()


class Lengths(Protocol):
    """A law of lengths.

    Attributes:
        mean: expected tokens of a sample.
        longest: most tokens that a sample can have; inf where there is no limit.
    """

    @property
    def mean(self) -> float: ...

    @property
    def longest(self) -> float: ...

    def sample(self, prompt_id: int, index: int) -> tuple[int, float]:
        """Return tokens (at least 1) and slot seconds of a sample; 0 seconds where the engine's speed decides.

        Args:
            index: of the sample in its group, from 0; an index beyond the group is a sample that is generated again.
        """
        ...


class ConstantLengths:
    """Every sample has the same length."""

    def __init__(self, tokens: int) -> None:
        if tokens < 1:
            raise OptionError(f"a sample needs at least 1 token, not {tokens}")
        self._answer = (tokens, 0.0)

    @property
    def mean(self) -> float:
        return float(self._answer[0])

    @property
    def longest(self) -> float:
        return float(self._answer[0])

    def sample(self, prompt_id: int, index: int) -> tuple[int, float]:
        return self._answer


class LognormalLengths:
    """Lognormal lengths, rounded to whole tokens and cut off at both ends: at 1 token, and at `clip` times the mean.

    The mean asked for is that of the law *before* it is clipped, so that `clip` changes the tail and nothing else. `mean` is what
    is left of it; with sigma 1 and clip 4 that is 0.931 of `unclipped_mean`.

    Args:
        unclipped_mean: tokens.
        sigma: standard deviation of the logarithm; 0 makes every sample equally long.
        clip: longest sample, as a multiple of `unclipped_mean`; inf clips nothing.
        seed: another seed, other lengths.
    """

    def __init__(self, unclipped_mean: float, sigma: float = 1.0, clip: float = math.inf, seed: int = 0) -> None:
        if not (1 <= unclipped_mean < math.inf and 0 <= sigma < math.inf and clip > 0):
            raise OptionError(
                f"lognormal lengths need a mean of at least 1, a sigma of at least 0 and a clip above 0, "
                f"not {unclipped_mean}, {sigma} and {clip}"
            )
        self.unclipped_mean = unclipped_mean
        self.sigma = sigma
        self.clip = clip
        self._seed = seed
        self._mu = math.log(unclipped_mean) - sigma * sigma / 2
        self._top = unclipped_mean * clip

    @property
    def mean(self) -> float:
        """E[min(X, clip * m)] of a lognormal X with mean m: m * phi(d - sigma) + clip * m * (1 - phi(d)), where
        d = (ln(clip * m) - mu) / sigma. Rounding to whole tokens is left out."""
        if self.sigma == 0 or self._top == math.inf:
            return min(self.unclipped_mean, self._top)
        edge = (math.log(self._top) - self._mu) / self.sigma
        below = self.unclipped_mean * STANDARD_NORMAL.cdf(edge - self.sigma)
        return below + self._top * (1 - STANDARD_NORMAL.cdf(edge))

    @property
    def longest(self) -> float:
        return max(1.0, float(round(self._top))) if self._top < math.inf else math.inf

    def sample(self, prompt_id: int, index: int) -> tuple[int, float]:
        normal = STANDARD_NORMAL.inv_cdf(uniform(self._seed, prompt_id, index))
        return max(1, round(min(self._top, math.exp(self._mu + self.sigma * normal)))), 0.0


class RecordedLengths:
    """The lengths of recorded groups in their order, from the first again when there are no more. Sample i of a prompt is sample i of
    its group; where a group recorded seconds, they count instead of the engine's speed.

    Raises:
        OptionError: there is no group, or one that makes no sense; names it, counting from 1.
    """

    def __init__(self, groups: Sequence[RecordedGroup]) -> None:
        if not groups:
            raise OptionError("there is no recorded group to take lengths from")
        for number, group in enumerate(groups, start=1):
            if fault := _fault(group):
                raise OptionError(f"recorded group {number} {fault}")
        self.groups = groups
        tokens = [count for group in groups for count in group.tokens]
        self._mean = sum(tokens) / len(tokens)
        self._longest = float(max(tokens))

    @property
    def mean(self) -> float:
        return self._mean

    @property
    def longest(self) -> float:
        return self._longest

    def sample(self, prompt_id: int, index: int) -> tuple[int, float]:
        group = self.groups[prompt_id % len(self.groups)]
        place = index % len(group.tokens)
        return group.tokens[place], group.seconds[place] if group.seconds else 0.0


def uniform(seed: int, prompt_id: int, index: int = -1) -> float:
    """Return a number in (0, 1) that is a pure function of its arguments: the finaliser of SplitMix64 over their sum, each multiplied
    by an odd number of its own (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014)."""
    state = (seed * 0xD1342543DE82EF95 + prompt_id * 0x9E3779B97F4A7C15 + index * 0xDA942042E4DD58B5) & _MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((state ^ (state >> 31)) >> 12) * TWO_TO_MINUS_52 + HALF_STEP


def _fault(group: RecordedGroup) -> str:
    """Say what is wrong with a recorded group, or ''."""
    if not group.tokens:
        return "has no lengths"
    if any(count < 1 for count in group.tokens):
        return f"has a length below 1: {min(group.tokens)}"
    for name, values in (("seconds", group.seconds), ("rewards", group.rewards)):
        if values and len(values) != len(group.tokens):
            return f"has {len(group.tokens)} lengths but {len(values)} {name}"
        if not all(map(math.isfinite, values)):
            return f"has {name} that are not finite"
    if any(seconds <= 0 for seconds in group.seconds):
        return f"has seconds that are not above 0: {min(group.seconds)}"
    return ""

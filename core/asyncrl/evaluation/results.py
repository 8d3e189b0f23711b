"""What a set's samples come to: mean reward, pass@k, and how many samples failed, were cut off or are of mixed versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import comb

from asyncrl.evaluation.records import EvalSample, EvalSet, SetResult, token_ids_as_text
from asyncrl.samples import Group, Sample, Status, TokenIds


def pass_at(k: int, *, samples: int, passed: int) -> float:
    """Return the unbiased estimate of the probability that at least one of `k` samples of a prompt passes.

    1 - C(n-c, k) / C(n, k) for n = `samples` of which c = `passed` passed: the fraction of all choices of k of the n samples with one
    that passed (Chen et al. 2021, "Evaluating Large Language Models Trained on Code", equation 1). In whole numbers, so that the one
    division is the only rounding. Needs 1 <= k <= samples and 0 <= passed <= samples, else it raises ValueError.
    """
    if not (1 <= k <= samples and 0 <= passed <= samples):
        raise ValueError(f"no pass@{k} of {samples} samples of which {passed} passed")
    choices = comb(samples, k)
    return (choices - comb(samples - passed, k)) / choices


def powers_of_two(most: int) -> list[int]:
    """Return 1, 2, 4, … up to `most`."""
    return [1 << bit for bit in range(most.bit_length())]


def scored(sample: Sample) -> bool:
    """Whether a sample has a score. It has none if it failed, or if its scoring gave no answer, as when it was killed."""
    return sample.usable and not sample.reason


def passed(sample: Sample, pass_reward: float) -> bool:
    """Whether a sample passed: one without a score never has."""
    return scored(sample) and sample.reward >= pass_reward


def mean_pass_at(groups: Sequence[Group], pass_reward: float) -> Mapping[int, float]:
    """Return pass@k by k, mean over the prompts, for k = 1, 2, 4, … up to the samples that every prompt has."""
    counts = [(len(group.samples), sum(passed(sample, pass_reward) for sample in group.samples)) for group in groups]
    fewest = min((samples for samples, _ in counts), default=0)
    return {
        k: sum(pass_at(k, samples=samples, passed=right) for samples, right in counts) / len(counts)
        for k in powers_of_two(fewest)
    }


def summarise(groups: Sequence[Group], *, pass_reward: float = 1.0, samples: tuple[EvalSample, ...] = ()) -> SetResult:
    """Sum the groups of a set up. A sample without a score counts as reward 0, as not passed and as failed."""
    every = [sample for group in groups for sample in group.samples]
    with_score = [sample for sample in every if scored(sample)]
    tokens = sum(count for sample in every for _, count in sample.spans)
    count = max(len(every), 1)
    return SetResult(
        mean_reward=sum(sample.reward for sample in with_score) / count,
        num_prompts=len(groups),
        num_samples=len(every),
        failed=(len(every) - len(with_score)) / count,
        truncated=sum(sample.status is Status.TRUNCATED for sample in every) / count,
        mean_length=sum(len(sample.token_ids) for sample in every) / count,
        version_mean=sum(version * n for sample in every for version, n in sample.spans) / max(tokens, 1),
        mixed_version=sum(len(sample.spans) > 1 for sample in every) / count,
        samples=samples,
        pass_at=mean_pass_at(groups, pass_reward),
    )


def to_read(groups: Sequence[Group], one: EvalSet) -> tuple[EvalSample, ...]:
    """Return the first sample of each group as text."""
    return tuple(
        EvalSample(
            _text(group.prompt.token_ids, one),
            _text(sample.token_ids, one),
            sample.reward,
            sample.reason or sample.status.value,
        )
        for group in groups
        for sample in group.samples[:1]
    )


def _text(token_ids: TokenIds, one: EvalSet) -> str:
    ids = token_ids.tolist()
    try:
        return one.text(ids)
    except Exception:  # what people read is not worth an eval point
        return token_ids_as_text(ids)

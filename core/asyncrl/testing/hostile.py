"""Completions that a model may come up with and a scorer must survive: nothing, endless repetition, code, broken and huge expressions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from asyncrl.samples import Sample, Status, full_mask
from asyncrl.testing.models import vocab_size

TEXTS = (
    "",
    " ",
    "42",
    "-0.0",
    "nan",
    "1e999999",
    "9**9**9**9",
    "factorial(10**9)",
    "(" * 400,
    "[" * 200 + "]" * 200,
    "\\frac{" * 200,
    "\\boxed{}\\boxed{\\boxed{1}}",
    "x^" * 300 + "2",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!",
    "__import__('os')._exit(1)",
    "'; raise SystemExit(1) #",
    "%s%n{0.__class__}${7*7}",
    "\n" * 300,
    '{"answer": ' * 100,
)


def completions(model: Path, longest: int) -> Iterator[tuple[str, Sample]]:
    """Yield what each completion is, with a finished sample of at most `longest` tokens.

    Texts are written in the tokens of `model/tokenizer.json`, character by character, as far as it has them.
    """
    size = vocab_size(model)
    rng = np.random.default_rng(0)
    yield "the shortest", _sample(rng.integers(0, size, 1))
    yield "one token again and again", _sample(np.full(longest, size - 1))
    yield "every token once", _sample(np.arange(min(size, longest)))
    for number in range(8):
        yield f"random tokens {number}", _sample(rng.integers(0, size, rng.integers(1, longest + 1)))
    characters = _characters(model)
    for text in TEXTS:
        ids = [characters[each] for each in text if each in characters][:longest]
        yield repr(text[:40]), _sample(np.array(ids, np.int64))


def _sample(ids: np.ndarray) -> Sample:
    count = len(ids)
    spans = ((0, count),) if count else ()
    return Sample(ids.astype(np.int32), np.full(count, -1.0, np.float32), full_mask(count), spans, Status.COMPLETED)


def _characters(model: Path) -> dict[str, int]:
    try:
        vocabulary: dict[str, int] = json.loads((model / "tokenizer.json").read_text())["model"]["vocab"]
        return {token: index for token, index in vocabulary.items() if len(token) == 1}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}

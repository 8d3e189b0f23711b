"""The problems: `BOS` + digits + `=`, and the sorted digits + `EOS`. Pure functions of seed and position, standard library only."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

CHARACTERS = "0123456789+-*/=()<>, abcdefghijklmnopqrstuvwxyz:?%^[]"
PAD, BOS, EOS = 0, 1, 2
FIRST_CHARACTER = 3
TOKEN_OF = {character: FIRST_CHARACTER + index for index, character in enumerate(CHARACTERS)}
TEXT_OF = {token: character for character, token in TOKEN_OF.items()} | {PAD: "<pad>", BOS: "<bos>", EOS: "<eos>"}

HELD_OUT = 512
"""Problems that are never trained on, whatever the seed: a model warm-started under one seed may be evaluated under another."""


def tokens(text: str) -> list[int]:
    """Token ids of a text, one a character. Raises KeyError for a character that the vocabulary lacks."""
    return [TOKEN_OF[character] for character in text]


def readable(token_ids: Iterable[int]) -> str:
    """Return tokens as text for people, special tokens spelled out."""
    return "".join(TEXT_OF.get(token, "\N{REPLACEMENT CHARACTER}") for token in token_ids)


def prompt_tokens(digits: str) -> list[int]:
    return [BOS, *tokens(digits), TOKEN_OF["="]]


def answer_tokens(answer: str) -> list[int]:
    """The only completion that is right: the answer and then the end, nothing between or after."""
    return [*tokens(answer), EOS]


@dataclass(frozen=True)
class Problems:
    """Every string of `min_digits` to `max_digits` digits: each length equally likely, then each string of that length."""

    min_digits: int
    max_digits: int

    def draw(self, stream: str, position: int) -> str:
        """Return the digits at `position` of a stream: the same on every machine and in every release."""
        seed = f"{stream}:{self.min_digits}-{self.max_digits}:{position}".encode()
        number = int.from_bytes(hashlib.blake2b(seed, digest_size=16).digest(), "big")
        number, length = divmod(number, self.max_digits - self.min_digits + 1)
        length += self.min_digits
        return f"{number % 10**length:0{length}}"

    def held_out(self) -> list[str]:
        """Return the `HELD_OUT` different problems that evaluation may use, in a fixed order."""
        found: dict[str, None] = {}
        position = 0
        while len(found) < HELD_OUT:
            found.setdefault(self.draw("held-out", position))
            position += 1
        return list(found)

    def draw_training(self, stream: str, position: int, held_out: frozenset[str]) -> str:
        """As `draw`, passing over held-out problems."""
        attempt = 0
        while (digits := self.draw(f"{stream}:{attempt}", position)) in held_out:
            attempt += 1
        return digits

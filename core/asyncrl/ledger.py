"""The fate of every prompt: each one that was issued is in exactly one place, and so are its generated tokens."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from enum import IntEnum
from typing import Any

from asyncrl.errors import BooksError


class Place(IntEnum):
    """Where an open prompt is. `QUEUED` waits to be issued again and counts as in flight in the books."""

    QUEUED = 0
    IN_FLIGHT = 1
    BUFFERED = 2
    IN_BATCH = 3

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")


def reason_word(reason: str) -> str:
    """Return what books and metrics file a reason under: its part before the first colon, as one short word."""
    return re.sub(r"[^\w.-]+", "_", reason.partition(":")[0].strip())[:40] or "unknown"


class _Open:
    """An open prompt: its place, tokens generated for it that have no fate yet, and how often it was issued again."""

    __slots__ = ("place", "retries", "tokens")

    def __init__(self, place: Place, retries: int = 0) -> None:
        self.place = place
        self.tokens = 0
        self.retries = retries


class Ledger:
    """Every transition is O(1); one that cannot be, such as training a prompt twice, raises `BooksError`.

    Prompt ids are the positions 0, 1, 2, … of the task's training stream, so that all that was ever issued is one cursor.
    """

    def __init__(self) -> None:
        self.cursor = 0
        self.trained = 0
        self.dropped: dict[str, int] = {}
        self.generated_tokens = 0
        self.trained_tokens = 0
        self.dropped_tokens: dict[str, int] = {}
        self.unfinished_tokens = 0
        self._open: dict[int, _Open] = {}
        self._queue: deque[int] = deque()
        self._counts = [0] * len(Place)

    def issue(self) -> int:
        """Put the next prompt in flight and return its id: one that waits to be issued again, else a new one."""
        if self._queue:
            prompt_id = self._queue.popleft()
            self._move(prompt_id, Place.QUEUED, Place.IN_FLIGHT)
            return prompt_id
        prompt_id = self.cursor
        self.cursor += 1
        self._open[prompt_id] = _Open(Place.IN_FLIGHT)
        self._counts[Place.IN_FLIGHT] += 1
        return prompt_id

    def generated(self, prompt_id: int, tokens: int) -> None:
        """Count tokens of a sample that has ended, of a group in flight."""
        self._entry(prompt_id, Place.IN_FLIGHT).tokens += tokens
        self.generated_tokens += tokens
        self.unfinished_tokens += tokens

    def discarded(self, tokens: int, reason: str) -> None:
        """Count tokens of a sample that was thrown away and generated again while its group lives on."""
        self.generated_tokens += tokens
        self.dropped_tokens[reason] = self.dropped_tokens.get(reason, 0) + tokens

    def buffered(self, prompt_id: int) -> None:
        """A finished group entered the buffer."""
        self._move(prompt_id, Place.IN_FLIGHT, Place.BUFFERED)

    def batched(self, prompt_id: int) -> None:
        """The trainer's side took a group out of the buffer."""
        self._move(prompt_id, Place.BUFFERED, Place.IN_BATCH)

    def train(self, prompt_id: int, *, masked_tokens: int = 0) -> int:
        """End a prompt as trained and return the tokens it was trained on; masked ones are dropped as ``masked``."""
        entry = self._close(prompt_id, {Place.IN_BATCH}, "trained")
        tokens = entry.tokens - masked_tokens
        self.trained += 1
        self.trained_tokens += tokens
        if masked_tokens:
            self.dropped_tokens["masked"] = self.dropped_tokens.get("masked", 0) + masked_tokens
        return tokens

    def drop(self, prompt_id: int, reason: str) -> int:
        """End a prompt as dropped and return the tokens that were wasted on it."""
        entry = self._close(prompt_id, {Place.IN_FLIGHT, Place.BUFFERED, Place.IN_BATCH}, "dropped")
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
        self.dropped_tokens[reason] = self.dropped_tokens.get(reason, 0) + entry.tokens
        return entry.tokens

    def issue_again(self, prompt_id: int, reason: str, *, counts: bool = True) -> int:
        """Queue an open prompt to be issued again and return the tokens that were wasted; `counts` as one of its retries."""
        entry = self._open.get(prompt_id)
        if entry is None or entry.place is Place.QUEUED:
            raise self._illegal(prompt_id, entry, "issued again")
        tokens, entry.tokens = entry.tokens, 0
        self.unfinished_tokens -= tokens
        self.dropped_tokens[reason] = self.dropped_tokens.get(reason, 0) + tokens
        entry.retries += counts
        self._move(prompt_id, entry.place, Place.QUEUED)
        self._queue.append(prompt_id)
        return tokens

    def retries(self, prompt_id: int) -> int:
        """How often an open prompt was issued again."""
        return self._open[prompt_id].retries

    def count(self, place: Place) -> int:
        """Open prompts in a place."""
        return self._counts[place]

    @property
    def unfinished(self) -> int:
        return len(self._open)

    def check(self) -> None:
        """Raise `BooksError` unless groups and tokens balance. Running sums: cheap at any size."""
        dropped, places, wasted = sum(self.dropped.values()), sum(self._counts), sum(self.dropped_tokens.values())
        if self.cursor != self.trained + dropped + len(self._open) or places != len(self._open):
            raise BooksError(
                f"the books do not balance: {self.cursor} groups issued, but {self.trained} trained, {dropped} dropped, "
                f"{len(self._open)} unfinished, of which {places} have a place"
            )
        if self.generated_tokens != self.trained_tokens + wasted + self.unfinished_tokens or self.unfinished_tokens < 0:
            raise BooksError(
                f"the books do not balance: {self.generated_tokens} tokens generated, but {self.trained_tokens} trained, "
                f"{wasted} dropped, {self.unfinished_tokens} unfinished"
            )

    def books(self) -> dict[str, Any]:
        """Groups and tokens by fate: ``{issued, trained, dropped: {REASON: n}, unfinished, tokens: {trained, dropped, unfinished}}``."""
        return {
            "issued": self.cursor,
            "trained": self.trained,
            "dropped": dict(self.dropped),
            "unfinished": len(self._open),
            "tokens": {
                "trained": self.trained_tokens,
                "dropped": sum(self.dropped_tokens.values()),
                "unfinished": self.unfinished_tokens,
            },
        }

    def state(self) -> dict[str, Any]:
        """Return the ledger as JSON: cursor, totals, and [id, retries] of the open prompts."""
        return {
            "cursor": self.cursor,
            "trained": self.trained,
            "dropped": dict(self.dropped),
            "tokens": {
                "generated": self.generated_tokens - self.unfinished_tokens,
                "trained": self.trained_tokens,
                "dropped": dict(self.dropped_tokens),
            },
            "open": [[prompt_id, entry.retries] for prompt_id, entry in sorted(self._open.items())],
        }

    def restore(self, state: dict[str, Any], kept: Iterable[tuple[int, int, Place]]) -> None:
        """Replace the content by a former `state`.

        Args:
            kept: (prompt id, tokens, place) of the groups that outlived the process. Every other open prompt is queued to be
                issued again, without counting as a retry.

        Raises:
            BooksError: a kept group is not open in the state, or is there twice.
        """
        self.cursor, self.trained, self.dropped = state["cursor"], state["trained"], dict(state["dropped"])
        tokens = state["tokens"]
        self.generated_tokens, self.trained_tokens = tokens["generated"], tokens["trained"]
        self.dropped_tokens, self.unfinished_tokens = dict(tokens["dropped"]), 0
        self._counts = [0] * len(Place)
        self._open = {prompt_id: _Open(Place.QUEUED, retries) for prompt_id, retries in state["open"]}
        self._counts[Place.QUEUED] = len(self._open)
        for prompt_id, count, place in kept:
            self._move(prompt_id, Place.QUEUED, place)
            self._open[prompt_id].tokens = count
            self.generated_tokens += count
            self.unfinished_tokens += count
        self._queue = deque(prompt_id for prompt_id, entry in self._open.items() if entry.place is Place.QUEUED)
        self.check()

    def _entry(self, prompt_id: int, place: Place) -> _Open:
        entry = self._open.get(prompt_id)
        if entry is None or entry.place is not place:
            raise self._illegal(prompt_id, entry, f"taken as {place}")
        return entry

    def _move(self, prompt_id: int, origin: Place, target: Place) -> None:
        entry = self._open.get(prompt_id)
        if entry is None or entry.place is not origin:
            raise self._illegal(prompt_id, entry, f"moved from {origin} to {target}")
        entry.place = target
        self._counts[origin] -= 1
        self._counts[target] += 1

    def _close(self, prompt_id: int, origins: set[Place], fate: str) -> _Open:
        entry = self._open.get(prompt_id)
        if entry is None or entry.place not in origins:
            raise self._illegal(prompt_id, entry, fate)
        del self._open[prompt_id]
        self._counts[entry.place] -= 1
        self.unfinished_tokens -= entry.tokens
        return entry

    def _illegal(self, prompt_id: int, entry: _Open | None, act: str) -> BooksError:
        ended = "it has ended" if prompt_id < self.cursor else "it was never issued"
        return BooksError(f"prompt {prompt_id} cannot be {act}: {f'it is {entry.place}' if entry else ended}")

"""Continuous batching: which requests run, and one decode step for all of them. Synchronous; knows nothing of HTTP or threads.

A request is admitted as soon as a row is free. Admission brings the keys and values of all its tokens but the last into a row: copied
from the prefix cache, or computed once for all requests with the same prompt. The last token then simply takes part in the next decode
step, so the first generated token needs no pass of its own, and a request that was retracted comes back by the same road.
"""

from __future__ import annotations

import math
import random
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

import torch

from asyncrl_torch.model import ModelRunner, Piece
from asyncrl_torch.prefixes import PrefixCache
from asyncrl_torch.requests import BadRequest, Request
from asyncrl_torch.sampling import RowSampler

PAUSE_MODES = ("in_place", "retract", "abort")


class Batcher:
    """The requests of one server. Every method must be called between two steps, from one thread.

    Attributes:
        version: weight version that generates the next token.
        paused: whether stepping is suspended; new requests wait.
        busy_seconds: time spent in steps.
        generated_tokens: tokens generated so far.
    """

    def __init__(self, runner: ModelRunner, prefixes: PrefixCache, *, max_running: int, seed: int) -> None:
        self.runner = runner
        self.prefixes = prefixes
        self.version = 0
        self.paused = False
        self.busy_seconds = 0.0
        self.generated_tokens = 0
        self._max_running = max_running
        self._seed = seed
        self._submitted = 0
        self._waiting: deque[Request] = deque()
        self._rows: list[Request] = []
        self._by_rid: dict[str, Request] = {}
        self._sampler: RowSampler | None = None
        self._tokens = torch.empty(0, 1, dtype=torch.long)
        self._positions = self._tokens
        self._longest = 0

    @property
    def num_running(self) -> int:
        return len(self._rows)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def has_work(self) -> bool:
        return not self.paused and bool(self._rows or self._waiting)

    # Requests -------------------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Queue a request; its id must not be in flight."""
        seed = request.sampling.seed
        request.random = random.Random(seed if seed >= 0 else self._seed * 2**64 + self._submitted)
        self._submitted += 1
        self._by_rid[request.rid] = request
        self._waiting.append(request)

    def abort(self, rid: str) -> list[Request]:
        """End one request with what it has; return it, or nothing if it is not in flight."""
        request = self._by_rid.get(rid)
        return self._end([request], {"type": "abort", "message": "aborted"}) if request else []

    def abort_all(self, message: str = "aborted") -> list[Request]:
        """End all requests with what they have; return them."""
        return self._end(list(self._by_rid.values()), {"type": "abort", "message": message})

    def fail_all(self, reason: str) -> list[Request]:
        """End all requests because a step failed; return them. Their replies are errors."""
        return self._end(list(self._by_rid.values()), {"type": "error", "message": reason})

    def _end(self, requests: Iterable[Request], finish: dict[str, Any]) -> list[Request]:
        ended = list(requests)
        for request in ended:
            request.finish = finish
            del self._by_rid[request.rid]
        self._waiting = deque(request for request in self._waiting if request.finish is None)
        self._compact()
        return ended

    # Pausing and weights --------------------------------------------------------------------------------------------

    def pause(self, mode: str) -> list[Request]:
        """Stop stepping; return the requests that ended by it. Raises `BadRequest` for an unknown mode."""
        if mode not in PAUSE_MODES:
            raise BadRequest(f"unknown pause mode {mode!r}; there are {', '.join(PAUSE_MODES)}")
        self.paused = True
        if mode == "retract":
            for request in self._rows:
                request.retractions += 1
            self._waiting.extendleft(reversed(self._rows))
            self._rows = []
            self._sampler = None
        return self.abort_all("generation was paused with mode abort") if mode == "abort" else []

    def resume(self) -> None:
        self.paused = False

    def weights_changed(self, version: int) -> None:
        """The model's weights are now those of `version`: no prefix of the old ones may reach a later request."""
        self.version = version
        self.prefixes.clear()
        for request in self._rows:
            request.mark(version)

    # Stepping -------------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def step(self) -> list[Request]:
        """Admit what fits, generate one token for every running request, and return those that someone must hear of: finished
        ones and streams."""
        began = time.perf_counter()
        if self._waiting and len(self._rows) < self._max_running:
            self._admit()
        if self._sampler is None:
            self._rebuild()
        assert self._sampler is not None
        logits = self.runner.decode(self._tokens, self._positions, self._longest)
        tokens, logprobs = self._sampler.sample(logits)
        values = logprobs.tolist()
        if not math.isfinite(sum(values)):
            raise FloatingPointError(f"the model's output under weight version {self.version} is not finite")
        self._tokens = tokens[:, None]
        self._positions = self._positions + 1
        self._longest += 1
        heard: list[Request] = []
        done = False
        for request, token, logprob in zip(self._rows, tokens.tolist(), values, strict=True):
            request.output.append(token)
            request.logprobs.append(logprob)
            sampling = request.sampling
            if token in sampling.stop_ids:
                request.finish = {"type": "stop", "matched": token}
            elif len(request.output) >= sampling.max_new_tokens:
                request.finish = {"type": "length", "length": len(request.output)}
            elif not request.stream:
                continue
            if request.finish is not None:
                del self._by_rid[request.rid]
                done = True
            heard.append(request)
        self.generated_tokens += len(self._rows)
        if done:
            self._compact()
        self.busy_seconds += time.perf_counter() - began
        return heard

    def _rebuild(self) -> None:
        device = self.runner.device
        self._sampler = RowSampler(self._rows, device)
        self._tokens = torch.tensor([[request.last_token] for request in self._rows], device=device)
        self._positions = torch.tensor([[request.length - 1] for request in self._rows], device=device)
        self._longest = max(request.length for request in self._rows)

    @torch.inference_mode()
    def _compact(self) -> None:
        """Close the gaps that finished requests left, by moving the last rows into them."""
        rows = self._rows
        index = 0
        while index < len(rows):
            if rows[index].finish is None:
                index += 1
                continue
            self._sampler = None
            last = rows.pop()
            if index < len(rows):
                if last.finish is None:
                    self.runner.cache.copy_row(len(rows), index, last.length - 1)
                rows[index] = last

    def _admit(self) -> None:
        first = len(self._rows)
        count = min(self._max_running - first, len(self._waiting))
        new = [self._waiting.popleft() for _ in range(count)]
        # requests of one prompt next to each other, its leader first; leaders in front, so that they are consecutive rows
        groups: dict[tuple[int, ...], list[Request]] = {}
        for request in new:
            groups.setdefault(tuple(request.prompt[:-1]), []).append(request)
        order = [members[0] for members in groups.values()] + [one for members in groups.values() for one in members[1:]]
        rows = {request.rid: first + place for place, request in enumerate(order)}
        self.runner.cache.reserve(first + count, max(request.length for request in order))
        self._fill_prompts(groups, rows)
        if any(request.output for request in order):
            self.runner.prefill([_tail(request, rows[request.rid]) for request in order])
        for request in order:
            request.mark(self.version)
        self._rows.extend(order)
        self._sampler = None

    def _fill_prompts(self, groups: dict[tuple[int, ...], list[Request]], rows: dict[str, int]) -> None:
        """Bring each prompt but its last token into the rows of its requests."""
        cache = self.runner.cache
        pieces = []
        for prefix, (leader, *_) in groups.items():
            known, content = self.prefixes.find(prefix)
            if content is not None:
                cache.write_row(rows[leader.rid], content, known)
            if not leader.output:
                leader.cached_tokens = known
            pieces.append(Piece(rows[leader.rid], known, prefix[known:]))
        self.runner.prefill(pieces)
        for (prefix, (_, *followers)), piece in zip(groups.items(), pieces, strict=True):
            if piece.tokens:
                self.prefixes.add(prefix, cache.read_row(piece.row, len(prefix)))
            for follower in followers:
                cache.copy_row(piece.row, rows[follower.rid], len(prefix))
                if not follower.output:
                    follower.cached_tokens = len(prefix)


def _tail(request: Request, row: int) -> Piece:
    """Return what a retracted request had generated, as far as the cache covers it: all but its last token."""
    tokens = (request.prompt[-1:] + request.output)[:-1]
    return Piece(row, len(request.prompt) - 1, tokens)

"""Sends generation requests to one address, an engine's or that of a router in front of several, and reads the answers."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
import numpy as np
import orjson
from yarl import URL

from asyncrl.errors import RequestFailed
from asyncrl.rollout.connection import JSON, Connection, words
from asyncrl.rollout.engine import GenerateRequest
from asyncrl.rollout.loads import Usage
from asyncrl.rollout.reply import read_completion
from asyncrl.samples import Completion


class Sender:
    """Generation at one address.

    Args:
        connection: where requests go; it may move.
        vocab_size: ids outside [0, vocab_size) are refused before they are sent; one would kill a real server.
        request_timeout: seconds a request may take in all.
        takes_seeds: whether requests carry their seed.
        abort: ends the request with a given id at whatever server has it; called when nobody waits for its answer any more.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        vocab_size: int,
        request_timeout: float,
        takes_seeds: bool,
        abort: Callable[[str], None],
    ) -> None:
        self.in_flight = 0
        self.usage = Usage()
        self._connection = connection
        self._vocab_size = vocab_size
        self._timeout = request_timeout
        self._limit = aiohttp.ClientTimeout(total=request_timeout)
        self._takes_seeds = takes_seeds
        self._abort = abort
        self._url = ("", URL())
        self._busy = 0.0
        self._busy_since = 0.0
        self._serial = itertools.count()
        self._rid_prefix = f"{os.urandom(6).hex()}-"

    @property
    def busy_seconds(self) -> float:
        """Seconds so far with at least one request in flight."""
        return self._busy + (time.monotonic() - self._busy_since if self.in_flight else 0.0)

    async def send(
        self,
        request: GenerateRequest,
        *,
        admitted: int,
        initial_version: int,
        cache_key: int = 0,
        headers: Mapping[str, str] = JSON,
    ) -> Completion:
        """Generate once.

        Args:
            admitted: version known now; the whole request's where the server gives no spans.
            initial_version: what the server's label ``default`` stands for.
            headers: beside those of the connection.
            cache_key: keeps the request from prefixes that were cached under another one; 0 is the server's own.

        Raises:
            RequestFailed: the request itself is wrong; no engine would take it.
            EngineFault: it failed, was answered with something else than a completion, or not in time.
        """
        rid = f"{self._rid_prefix}{next(self._serial)}"
        body = self._body(request, rid, cache_key)
        if self.in_flight == 0:
            self._busy_since = time.monotonic()
        self.in_flight += 1
        try:
            async with self._connection.session.post(
                self._address(),
                data=body,
                headers={**self._connection.headers, **headers},
                timeout=self._limit,
                allow_redirects=False,
            ) as response:
                raw = await response.read()
                status = response.status
        except asyncio.CancelledError:
            self._abort(rid)
            raise
        except TimeoutError as cause:
            self._abort(rid)
            raise self._connection.fault(f"a request got no answer within {self._timeout:g} s", cause) from cause
        except (aiohttp.ClientError, OSError) as cause:
            raise self._connection.fault(f"a request failed: {words(cause)}", cause) from cause
        finally:
            self.in_flight -= 1
            if self.in_flight == 0:
                self._busy += time.monotonic() - self._busy_since
        if status != 200:
            raise self._connection.refusal("/generate", status, raw)
        try:
            return read_completion(raw, admitted, initial_version, request.params.max_new_tokens, self.usage)
        except (ValueError, TypeError, KeyError, IndexError, OverflowError) as cause:
            raise self._connection.fault(
                f"answered a request with something else than a completion: {words(cause)}", cause
            ) from cause

    def _address(self) -> URL:
        """Where requests go now; parsed once."""
        if self._url[0] != self._connection.url:
            self._url = self._connection.url, URL(self._connection.url) / "generate"
        return self._url[1]

    def _body(self, request: GenerateRequest, rid: str, cache_key: int) -> bytes:
        ids, params = np.ascontiguousarray(request.token_ids, dtype=np.int32), request.params
        if len(ids) == 0:
            raise RequestFailed("a prompt is empty", origin=self._connection.name)
        if np.maximum.reduce(ids.view(np.uint32)) >= self._vocab_size:  # a negative id is a huge one here
            bad = int(ids.min()) if ids.min() < 0 else int(ids.max())
            raise RequestFailed(f"token id {bad} is outside the vocabulary of {self._vocab_size}", origin=self._connection.name)
        sampling: dict[str, Any] = {
            "max_new_tokens": params.max_new_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k,
        }
        if params.stop_token_ids:
            sampling["stop_token_ids"] = list(params.stop_token_ids)
        if params.ignore_eos:
            sampling["ignore_eos"] = True
        if self._takes_seeds and request.seed >= 0:
            sampling["sampling_seed"] = request.seed
        body: dict[str, Any] = {"rid": rid, "input_ids": ids, "sampling_params": sampling, "return_logprob": True}
        if cache_key:
            body["extra_key"] = str(cache_key)
        return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)

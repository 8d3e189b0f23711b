"""From the bytes of a `/generate` answer to a `Completion`, refusing whatever does not add up."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import orjson

from asyncrl.rollout.loads import Usage
from asyncrl.samples import Completion, Spans, merge_spans

REASONS = ("stop", "length", "abort")


def read_completion(
    raw: bytes, admitted: int, initial_version: int, max_new_tokens: int, usage: Usage | None = None
) -> Completion:
    """Return the completion in a server's answer.

    Args:
        raw: body of the answer.
        admitted: version known when the request was sent; the whole request's where the server gives no spans.
        initial_version: what the server's label ``default`` stands for.
        max_new_tokens: more tokens than this are refused.
        usage: counts up by what the server says of the prompt.

    Raises:
        ValueError, TypeError, KeyError: it is no JSON, or its parts do not fit together.
    """
    reply = orjson.loads(raw)
    if not isinstance(reply, dict):
        raise ValueError(f"expected one completion, got a {type(reply).__name__} of {len(reply)}")
    meta = reply["meta_info"]
    reason = meta["finish_reason"]["type"]
    if reason not in REASONS:
        raise ValueError(f"unknown finish reason {reason!r}")
    if reason == "abort":  # given up, perhaps before it ran: keep the tokens that came with their log-probability
        ids, pairs = reply.get("output_ids") or [], meta.get("output_token_logprobs") or []
        count = min(len(ids), len(pairs))
        ids, pairs = ids[:count], pairs[:count]
    else:
        ids, pairs = reply["output_ids"], meta["output_token_logprobs"]
    count = len(ids)
    if len(pairs) != count or count > max_new_tokens or (count == 0 and reason != "abort"):
        raise ValueError(f"{count} tokens with {len(pairs)} log-probabilities where at most {max_new_tokens} were asked for")
    token_ids = np.array(ids, dtype=np.int32)
    logprobs = np.array([pair[0] for pair in pairs], dtype=np.float32)
    if not math.isfinite(np.add.reduce(logprobs)):
        raise ValueError("a log-probability is not finite")
    if count and (pairs[0][1] != ids[0] or pairs[-1][1] != ids[-1]):
        raise ValueError("the log-probabilities are those of other tokens")
    if usage is not None:
        usage.prompt_tokens += int(meta.get("prompt_tokens") or 0)
        usage.cached_tokens += int(meta.get("cached_tokens") or 0)
    return Completion(token_ids, logprobs, _spans(meta, count, admitted, initial_version), reason, admitted)


def _spans(meta: dict[str, Any], count: int, admitted: int, initial_version: int) -> Spans:
    """The server's spans if they cover the tokens; else the oldest version it may have been, for all of them.

    The label of a finished answer is the newest version, so it can only lower what was known at admission: an engine that was
    restarted serves older weights than it was thought to.
    """
    if count == 0:
        return ()
    told = meta.get("weight_versions")
    if told and len(told) == 1:  # nearly always
        version = read_version(told[0]["version"], initial_version)
        if version is not None and told[0]["start"] == 0 and told[0]["end"] >= count:
            return ((version, count),)
    elif told:
        parts = [(read_version(part["version"], initial_version), part["start"], part["end"]) for part in told]
        starts = [start for _, start, _ in parts]
        ends = [end for _, _, end in parts]
        known = all(version is not None for version, _, _ in parts)
        if known and starts == [0, *ends[:-1]] and min(end - start for _, start, end in parts) >= 0 and ends[-1] >= count:
            return merge_spans((version or 0, min(end, count) - start) for version, start, end in parts)
    label = read_version(meta.get("weight_version"), initial_version)
    return ((admitted if label is None else min(label, admitted), count),)


def read_version(label: object, initial_version: int) -> int | None:
    """Return the version in a server's label; None if it is not one of ours."""
    if label == "default":
        return initial_version
    return int(label) if isinstance(label, int | str) and str(label).isdigit() else None

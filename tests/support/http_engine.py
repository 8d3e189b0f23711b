"""A scripted engine server for tests: SGLang's protocol over real HTTP, with exact faults and token counts instead of a model.

It keeps the traps of the real server: an update `in_place` that flushes is a 400 although the weights did change, a new version label
aborts everything unless told not to, `/flush_cache` is refused while requests run, `/health` fails while paused.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections import defaultdict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

WEIGHTS = "weights.txt"
"""The file of an exported directory; its text stands for the weights."""

FAULTS = ("400", "500", "close", "close_mid_body", "hang", "garbage", "list", "short", "long", "nan", "silent")


def digest_of(weights: str) -> str:
    """The digest that trainer and comparable engines compute."""
    return hashlib.sha256(weights.encode()).hexdigest()


class Wire:
    """A collective in one process: a send ends when every receiver has taken it, and hangs while one does not come."""

    def __init__(self) -> None:
        self.receivers: dict[int, asyncio.Queue[str]] = {}
        self.closed = asyncio.Event()

    async def send(self, text: str) -> None:
        for queue in list(self.receivers.values()):
            await queue.put(text)
        await self._or_closed(asyncio.gather(*(queue.join() for queue in self.receivers.values())))

    async def receive(self, rank: int) -> str:
        queue = self.receivers[rank]
        text: str = await self._or_closed(queue.get())
        queue.task_done()
        return text

    async def _or_closed(self, awaitable: Any) -> Any:
        task, closed = asyncio.ensure_future(awaitable), asyncio.ensure_future(self.closed.wait())
        try:
            await asyncio.wait([task, closed], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ConnectionError("connection closed by peer")
            return task.result()
        finally:
            task.cancel()
            closed.cancel()


class HttpEngine:
    """One server. Public attributes may be read and set by a test at any time.

    Attributes:
        spans: whether answers tell exact version spans; else only the label of the finished answer.
        comparable: whether its checksum is the trainer's digest.
        ignores_labels: whether updates leave the label as it is.
        key: what requests must carry as their bearer token; '' for nothing. `/health` alone is open.
        echoes: whether it quotes in its refusals what it was sent as key, and its own.
        hold_after: tokens after which every request waits for `release`; None for no waiting.
        requests: (path, JSON body) of every call, in order.
        generated: tokens of every request so far, by rid.
    """

    def __init__(self, *, spans: bool = True, comparable: bool = True, vocab_size: int = 64) -> None:
        self.spans = spans
        self.comparable = comparable
        self.vocab_size = vocab_size
        self.label = "default"
        self.weights = "initial"
        self.ignores_labels = False
        self.ignores_updates = False
        self.key = ""
        self.echoes = False
        self.paused = False
        self.pause_mode = ""
        self.updating = False
        self.hold_after: int | None = None
        self.requests: list[tuple[str, Any]] = []
        self.generated: dict[str, int] = {}
        self.wires: dict[str, Wire] = {}
        self.groups: dict[str, int] = {}
        self._staged = ""
        self._faults: defaultdict[str, deque[str]] = defaultdict(deque)
        self._aborted: set[str] = set()
        self._changed = asyncio.Condition()
        self._runner: web.AppRunner | None = None
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> HttpEngine:
        """Serve; after a `stop` at the same address, as a restarted server would."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.01)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]
        return self

    async def stop(self) -> None:
        """Go away with all connections, as a killed process would."""
        if self._runner is not None:
            for connection in list(self._runner.server.connections):
                if connection.transport is not None:
                    connection.transport.abort()
            await self._runner.cleanup()
            self._runner = None

    def fail(self, path: str, *faults: str) -> None:
        """Answer the next calls of `path` with these faults, one each; ``ok`` lets one pass."""
        assert set(faults) <= {*FAULTS, "ok"}
        self._faults[path].extend(faults)

    async def release(self) -> None:
        """Let held requests go on."""
        self.hold_after = None
        await self._notify()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something this server saw makes `condition` true."""
        async with asyncio.timeout(30), self._changed:
            await self._changed.wait_for(condition)

    def called(self, path: str) -> list[Any]:
        """Bodies of the calls of `path`."""
        return [body for called, body in self.requests if called == path]

    # What it does ---------------------------------------------------------------------------------------------------

    async def _handle(self, http: web.Request) -> web.StreamResponse:
        raw = await http.read()
        body = orjson.loads(raw) if raw else {}
        carried = http.headers.get("Authorization", "")
        if self.key and http.path != "/health" and carried != f"Bearer {self.key}":
            return _json({"message": f"{carried} is not {self.key}" if self.echoes else "no key"}, 401)
        self.requests.append((http.path, body))
        await self._notify()
        fault = self._faults[http.path].popleft() if self._faults[http.path] else ""
        if fault in ("400", "500"):
            told = f" for {carried}" if self.echoes else ""
            return _json({"success": False, "message": f"scripted {fault}{told}"}, int(fault))
        if fault == "close":
            http.transport.abort()  # type: ignore[union-attr]
        if fault == "hang":
            await asyncio.sleep(3600)
        if fault == "garbage":
            return web.Response(body=b"<html>502 from a proxy</html>")
        if fault == "silent":  # says yes and does nothing
            return _json({"success": True, "message": "done"})
        if http.path == "/generate":
            answer = await self._generate(body)
        else:
            answer = await self._control(http.path.strip("/"), body)
        if fault == "close_mid_body":
            await _send_half(http, orjson.dumps(answer))
        if isinstance(answer, web.Response):
            return answer
        return _json(_spoilt(answer, fault))

    async def _generate(self, body: Any) -> Any:
        rid, prompt, wanted = body["rid"], body["input_ids"], body["sampling_params"]["max_new_tokens"]
        if not prompt:
            return _json({"error": {"message": "empty prompt"}}, 400)
        assert max(prompt) < self.vocab_size, "an id outside the vocabulary kills a real server"
        tokens: list[int] = []
        labels: list[str] = []
        self.generated[rid] = 0
        reason = "length"
        try:
            while len(tokens) < wanted:
                async with self._changed:
                    await self._changed.wait_for(lambda: rid in self._aborted or not self._held(len(tokens)))
                if rid in self._aborted:
                    reason = "abort"
                    break
                tokens.append((prompt[-1] + len(tokens)) % self.vocab_size)
                labels.append(self.label)
                self.generated[rid] = len(tokens)
                await self._notify()
        finally:
            del self.generated[rid]
            await self._notify()
        meta: dict[str, Any] = {
            "id": rid,
            "finish_reason": {"type": reason},
            "weight_version": self.label,
            "output_token_logprobs": [[-0.5, token, None] for token in tokens],
        }
        if self.spans:
            cuts = [0, *(i for i in range(1, len(labels)) if labels[i] != labels[i - 1]), len(labels)]
            pairs = itertools.pairwise(cuts)
            meta["weight_versions"] = [{"version": labels[a], "start": a, "end": b} for a, b in pairs if a < b]
        return {"output_ids": tokens, "meta_info": meta}

    def _held(self, count: int) -> bool:
        return self.paused or (self.hold_after is not None and count >= self.hold_after)

    async def _control(self, name: str, body: Any) -> Any:
        handler = getattr(self, f"_do_{name}", None)
        if handler is None:
            return _json({"message": "not found"}, 404)
        answer = await handler(body)
        await self._notify()
        return answer or {"success": True, "message": "done"}

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _do_ready(self, body: Any) -> Any: ...

    async def _do_model_info(self, body: Any) -> Any:
        return {"model_path": "scripted", "weight_version": self.label}

    async def _do_health(self, body: Any) -> Any:
        return _json({"message": "paused"}, 503) if self.paused else None

    async def _do_abort_request(self, body: Any) -> Any:
        self._aborted.update(self.generated if body.get("abort_all") else [body["rid"]])

    async def _do_pause_generation(self, body: Any) -> Any:
        self.paused, self.pause_mode = True, body["mode"]

    async def _do_continue_generation(self, body: Any) -> Any:
        self.paused = False

    async def _do_flush_cache(self, body: Any) -> Any:
        return _json({"success": False, "message": "requests are running"}, 400) if self.generated else None

    async def _do_weights_checker(self, body: Any) -> Any:
        assert body["action"] == "checksum"
        if self.comparable:
            return {"success": True, "checksum": digest_of(self.weights)}
        return {"success": True, "ranks": [{"rank": 0, "checksums": {"all": f"crc-of-{self.weights}"}}]}

    async def _do_update_weight_version(self, body: Any) -> Any:
        self.label = body["new_version"]
        if body.get("abort_all_requests", True):
            self._aborted.update(self.generated)

    async def _do_update_weights_from_disk(self, body: Any) -> Any:
        file = Path(body["model_path"]) / WEIGHTS
        if not file.exists():
            return _json({"success": False, "message": f"no such model: {body['model_path']}"}, 400)
        return self._serve(file.read_text(), body)

    async def _do_init_weights_update_group(self, body: Any) -> Any:
        name, rank = body["group_name"], body["rank_offset"]
        self.groups[name] = rank
        self.wires[name].receivers[rank] = asyncio.Queue()

    async def _do_destroy_weights_update_group(self, body: Any) -> Any:
        if self.groups.pop(body["group_name"], None) is None:
            return _json({"success": False, "message": "no such group"}, 400)

    async def _do_begin_weight_update(self, body: Any) -> Any:
        if self.updating:
            return _json({"success": False, "message": "begun already"}, 400)
        self.updating, self._staged = True, ""

    async def _do_update_weights_from_distributed(self, body: Any) -> Any:
        if not self.updating:
            return _json({"success": False, "message": "not begun"}, 400)
        name = body["group_name"]
        try:
            self._staged += await self.wires[name].receive(self.groups[name])
        except ConnectionError as cause:
            return _json({"success": False, "message": str(cause)}, 400)
        return self._serve(self._staged, body)  # like SGLang at once: half an update is served

    async def _do_end_weight_update(self, body: Any) -> Any:
        if not self.updating:
            return _json({"success": False, "message": "not begun"}, 400)
        self.updating = False

    def _serve(self, weights: str, body: Any) -> Any:
        if not self.ignores_updates:
            self.weights = weights
        if self.paused and self.pause_mode == "in_place" and body["flush_cache"]:
            return _json({"success": False, "message": "cannot flush: requests are running"}, 400)
        if not self.ignores_labels:
            self.label = body["weight_version"]
        return None


def _spoilt(answer: Any, fault: str) -> Any:
    if fault == "list":
        return [answer, answer]
    if fault == "short":
        answer["meta_info"]["output_token_logprobs"].pop()
    if fault == "long":
        answer["output_ids"] += [0]
        answer["meta_info"]["output_token_logprobs"].append([-0.5, 0, None])
    if fault == "nan":
        answer["meta_info"]["output_token_logprobs"][0][0] = None
    return answer


async def _send_half(http: web.Request, body: bytes) -> None:
    response = web.StreamResponse(headers={"Content-Length": str(len(body)), "Content-Type": "application/json"})
    await response.prepare(http)
    await response.write(body[: len(body) // 2])
    http.transport.abort()  # type: ignore[union-attr]


def _json(content: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(content), status=status, content_type="application/json")

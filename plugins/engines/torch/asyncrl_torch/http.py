"""The HTTP face: the subset of SGLang's native API that asyncrl speaks."""

from __future__ import annotations

import hmac
import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import orjson
from aiohttp import web

from asyncrl_torch.requests import BadRequest, Limits, Request, parse_request
from asyncrl_torch.updates import WeightUpdates
from asyncrl_torch.worker import Worker

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

MAX_BODY = 256 * 2**20
OPEN = ("/health", "/health_generate", "/ready", "/ping")  # to everybody: they tell nothing else


@dataclass(frozen=True)
class ServerFacts:
    """What `/server_info` tells beside the state."""

    device: str
    dtype: str
    max_running: int
    limits: Limits


class Api:
    """All endpoints of one server."""

    def __init__(self, worker: Worker, updates: WeightUpdates, facts: ServerFacts, api_key: str = "") -> None:
        self._api_key = api_key
        self._worker = worker
        self._batcher = worker.batcher
        self._updates = updates
        self._facts = facts
        self._in_flight: set[str] = set()

    def application(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY, middlewares=[_errors_as_json, self._require_key])
        post, get = app.router.add_post, app.router.add_get
        post("/generate", self.generate)
        post("/abort_request", self.abort_request)
        post("/pause_generation", self.pause_generation)
        post("/continue_generation", self.continue_generation)
        for add in (post, get):
            add("/flush_cache", self.flush_cache)
        post("/update_weights_from_disk", self._control(self._updates.from_disk))
        post("/init_weights_update_group", self._control(self._updates.join))
        post("/destroy_weights_update_group", self._control(self._updates.leave))
        post("/begin_weight_update", self._control(lambda body: self._updates.begin()))
        post("/update_weights_from_distributed", self._control(self._updates.receive))
        post("/end_weight_update", self._control(lambda body: self._updates.end()))
        post("/update_weight_version", self._control(self._updates.relabel))
        post("/weights_checker", self.weights_checker)
        for path in OPEN:
            get(path, self.health)
        get("/model_info", self.model_info)
        get("/get_model_info", self.model_info)
        get("/server_info", self.server_info)
        get("/get_server_info", self.server_info)
        get("/v1/loads", self.loads)
        return app

    @web.middleware
    async def _require_key(self, http: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse who does not carry the key as a bearer token."""
        carried = http.headers.get("Authorization", "").encode()
        if self._api_key and http.path not in OPEN and not hmac.compare_digest(carried, f"Bearer {self._api_key}".encode()):
            return refusal("this server requires a key", 401)
        return await handler(http)

    # Generation -----------------------------------------------------------------------------------------------------

    async def generate(self, http: web.Request) -> web.StreamResponse:
        request = parse_request(await _body(http), self._facts.limits)
        if request.rid in self._in_flight:
            raise BadRequest(f"a request with rid {request.rid!r} is in flight already")
        self._in_flight.add(request.rid)
        self._worker.post(self._batcher.submit, request)
        try:
            if request.stream:
                return await self._stream(http, request)
            while request.finish is None:
                await request.wakeup.wait()
        finally:
            self._in_flight.discard(request.rid)
            if request.finish is None:  # the client is gone
                self._worker.post(self._batcher.abort, request.rid)
        if request.finish["type"] == "error":
            return _json({"error": {"message": request.finish["message"]}}, 500)
        return _json(request.reply(self._batcher.version))

    async def _stream(self, http: web.Request, request: Request) -> web.StreamResponse:
        """Send all tokens so far whenever there are new ones; a slow reader gets fewer, larger chunks."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await response.prepare(http)
        finished = False
        while not finished:
            await request.wakeup.wait()
            request.wakeup.clear()
            finished = request.finish is not None
            await response.write(b"data: " + orjson.dumps(request.reply(self._batcher.version)) + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def abort_request(self, http: web.Request) -> web.Response:
        body = await _body(http)
        if body.get("abort_all") is True:
            count = await self._worker.ending(self._batcher.abort_all)
        else:
            rid = body.get("rid")
            if not isinstance(rid, str) or not rid:
                raise BadRequest("abort_request needs a rid, or abort_all")
            count = await self._worker.ending(self._batcher.abort, rid)
        return _json({"success": True, "message": f"{count} requests were aborted"})

    async def pause_generation(self, http: web.Request) -> web.Response:
        mode = (await _body(http)).get("mode", "abort")
        await self._worker.ending(self._batcher.pause, mode)
        return _json({"success": True, "status": "ok", "message": f"paused with mode {mode}"})

    async def continue_generation(self, http: web.Request) -> web.Response:
        await self._worker.between_steps(self._batcher.resume)
        return _json({"success": True, "status": "ok", "message": "continued"})

    async def flush_cache(self, http: web.Request) -> web.Response:
        await self._worker.between_steps(self._batcher.prefixes.clear)
        return _json({"success": True, "message": "the prefix cache is empty"})

    # Weights --------------------------------------------------------------------------------------------------------

    def _control(self, function: Callable[[dict[str, Any]], Awaitable[str]]) -> Handler:
        async def handler(http: web.Request) -> web.Response:
            message = await function(await _body(http))
            return _json({"success": True, "message": message, "weight_version": str(self._batcher.version)})

        return handler

    async def weights_checker(self, http: web.Request) -> web.Response:
        action = (await _body(http)).get("action")
        if action != "checksum":
            raise BadRequest(f"unknown action {action!r}; there is checksum")
        return _json({"success": True, "checksum": await self._updates.checksum()})

    # State ----------------------------------------------------------------------------------------------------------

    async def health(self, http: web.Request) -> web.Response:
        alive = self._worker.alive
        return _json({"status": "ok" if alive else "the generating thread has died"}, 200 if alive else 503)

    async def model_info(self, http: web.Request) -> web.Response:
        return _json(
            {
                "model_path": self._updates.model_path,
                "weight_version": str(self._batcher.version),
                "is_generation": True,
                "vocab_size": self._facts.limits.vocab_size,
                "max_context": self._facts.limits.max_context,
            }
        )

    async def server_info(self, http: web.Request) -> web.Response:
        facts = self._facts
        version = str(self._batcher.version)
        return _json(
            {
                "engine": "asyncrl-plugin-torch",
                "model_path": self._updates.model_path,
                "weight_version": version,
                "device": facts.device,
                "dtype": facts.dtype,
                "max_running_requests": facts.max_running,
                "context_length": facts.limits.max_context,
                "paused": self._batcher.paused,
                "internal_states": [{"weight_version": version}],
            }
        )

    async def loads(self, http: web.Request) -> web.Response:
        batcher = self._batcher
        running, waiting = batcher.num_running, batcher.num_waiting
        load = {
            "dp_rank": 0,
            "num_running_reqs": running,
            "num_waiting_reqs": waiting,
            "busy_seconds": batcher.busy_seconds,
            "generated_tokens": batcher.generated_tokens,
            "prefix_tokens": batcher.prefixes.num_tokens,
        }
        total = {"total_running_reqs": running, "total_waiting_reqs": waiting, "total_reqs": running + waiting}
        return _json({"timestamp": time.time(), "dp_rank_count": 1, "loads": [load], "aggregate": total})


def _json(content: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(content), status=status, content_type="application/json")


def refusal(message: str, status: int) -> web.Response:
    """Return an error in both of SGLang's shapes."""
    return _json({"success": False, "message": message, "error": {"message": message, "code": status}}, status)


async def _body(http: web.Request) -> dict[str, Any]:
    raw = await http.read()
    if not raw:
        return {}
    try:
        body = orjson.loads(raw)
    except ValueError as cause:
        raise BadRequest(f"the body is not JSON: {cause}") from cause
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    return body


@web.middleware
async def _errors_as_json(http: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(http)
    except BadRequest as error:
        return refusal(str(error), 400)
    except web.HTTPException as error:
        return refusal(f"{http.method} {http.path}: {error.reason}", error.status)
    except Exception as error:
        traceback.print_exc()
        return refusal(f"{http.method} {http.path} failed: {type(error).__name__}: {error}", 500)

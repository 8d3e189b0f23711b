"""A router in this process that speaks the API of SGLang's, with exact faults. The real one is in `tests/sglang`."""

from __future__ import annotations

import itertools
from typing import Any

import aiohttp
import orjson
from aiohttp import web
from asyncrl.errors import EngineError
from asyncrl.rollout.front import ROUTING_KEY


class HttpRouter:
    """Satisfies `FrontServer`. Public attributes may be read and set by a test at any time.

    Attributes:
        joins: whether engines that are added get requests; else they stay on their way.
        fails_joins: whether adding an engine fails.
        keeps: whether engines that are removed stay nonetheless.
        starts: how often it was started.
        start_errors: what the next starts end with.
        api_keys: what each engine was added with, by its address; its requests carry it.
        sent: (routing key, address of the engine) of every request, in order.
    """

    def __init__(self) -> None:
        self.joins = True
        self.fails_joins = False
        self.keeps = False
        self.starts = 0
        self.start_errors: list[str] = []
        self.sent: list[tuple[str, str]] = []
        self.workers: dict[str, str] = {}
        self.joining: dict[str, str] = {}
        self.api_keys: dict[str, str] = {}
        self._ids = itertools.count()
        self._keys: dict[str, str] = {}
        self._runner: web.AppRunner | None = None
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> str:
        self.starts += 1
        if self.start_errors:
            raise EngineError(self.start_errors.pop(0))
        app = web.Application()
        app.add_routes(
            [
                web.get("/workers", self._list),
                web.post("/workers", self._add),
                web.get("/workers/{id}", self._tell),
                web.delete("/workers/{id}", self._remove),
                web.post("/generate", self._generate),
            ]
        )
        self._session = aiohttp.ClientSession()
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.01)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    def running(self) -> bool:
        return self._runner is not None

    async def stop(self) -> None:
        """Go away with all connections, as a killed process would."""
        if self._runner is not None and self._session is not None:
            runner, self._runner = self._runner, None
            self.workers, self.joining = {}, {}
            for connection in list(runner.server.connections):  # type: ignore[union-attr]
                if connection.transport is not None:
                    connection.transport.abort()
            await runner.cleanup()
            await self._session.close()

    async def _list(self, http: web.Request) -> web.Response:
        return _json({"workers": [{"id": number, "url": url} for url, number in self.workers.items()]})

    async def _add(self, http: web.Request) -> web.Response:
        worker = await http.json()
        url, self.api_keys[worker["url"]] = worker["url"], worker.get("api_key", "")
        number = f"worker-{next(self._ids)}"
        (self.workers if self.joins and not self.fails_joins else self.joining)[url] = number
        return _json({"worker_id": number}, 202)

    async def _tell(self, http: web.Request) -> web.Response:
        if http.match_info["id"] not in self.joining.values():
            return _json({"error": "not found"}, 404)
        return _json({"job_status": {"status": "failed" if self.fails_joins else "processing"}})

    async def _remove(self, http: web.Request) -> web.Response:
        if not self.keeps:
            self.workers = {url: number for url, number in self.workers.items() if number != http.match_info["id"]}
        return _json({}, 202)

    async def _generate(self, http: web.Request) -> web.Response:
        key = http.headers[ROUTING_KEY]
        if not self.workers:
            return _json({"error": "no workers"}, 503)
        if self._keys.get(key) not in self.workers:
            taken = list(self._keys.values())
            self._keys[key] = min(self.workers, key=taken.count)
        url = self._keys[key]
        self.sent.append((key, url))
        assert self._session is not None
        try:
            headers = {"Authorization": f"Bearer {self.api_keys[url]}"} if self.api_keys[url] else {}
            async with self._session.post(f"{url}/generate", data=await http.read(), headers=headers) as answer:
                return web.Response(body=await answer.read(), status=answer.status)
        except aiohttp.ClientError as error:
            return _json({"error": str(error)}, 500)


def _json(content: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(content), status=status, content_type="application/json")

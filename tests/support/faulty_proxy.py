"""A proxy in front of a real engine server, which it starts, that does to its answers what networks and servers do.

python faulty_proxy.py --port 1234 --behind 1235 --fault 500:7 --fault hang:11 -- COMMAND OF THE REAL SERVER
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path

import aiohttp
from aiohttp import web

FAULTS = {
    "500": "/generate",
    "hang": "/generate",
    "half": "/generate",
    "update-500": "/update_weights_from_distributed",
    "update-hang": "/update_weights_from_distributed",
    "sick": "/health",
}
"""What may happen, and to which requests. ``500:7`` is an error for every seventh; ``hang`` never answers, ``half`` closes the connection
in the middle of the answer."""


class Proxy:
    """Forwards every request to `url`, but for those that a fault meets. Writes each fault into `log`."""

    def __init__(self, url: str, faults: list[str]) -> None:
        self._url = url
        self._faults = [(name, int(every), itertools.count(1)) for name, _, every in (fault.partition(":") for fault in faults)]

    async def run(self, port: int, command: list[str]) -> int:
        """Serve until the real server ends; return its exit code."""
        server = await asyncio.create_subprocess_exec(*command)
        app = web.Application(client_max_size=2**30)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(None)) as self._session:
            await web.TCPSite(runner, "127.0.0.1", port).start()
            return await server.wait()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        faults = set(self._due(request.path))
        if "500" in faults or "update-500" in faults or "sick" in faults:
            return web.Response(status=500, text="a fault made by a test")
        if "hang" in faults or "update-hang" in faults:
            await asyncio.Event().wait()
        try:
            async with self._session.request(request.method, f"{self._url}{request.path_qs}", data=await request.read()) as real:
                body, status, kind = await real.read(), real.status, real.content_type
        except aiohttp.ClientError as error:  # while it starts
            return web.Response(status=503, text=str(error))
        if "half" in faults:
            return await _half(request, body)
        return web.Response(status=status, body=body, content_type=kind)

    def _due(self, path: str) -> Iterator[str]:
        for name, every, counter in self._faults:
            if FAULTS[name] == path and next(counter) % every == 0:
                yield name


async def _half(request: web.Request, body: bytes) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": str(len(body)), "Content-Type": "application/json"})
    await response.prepare(request)
    await response.write(body[: len(body) // 2])
    if request.transport is not None:
        request.transport.abort()
    return response


def command_of(port: int, behind: int, faults: list[str], command: list[str]) -> list[str]:
    """The command line of a proxy, without its interpreter."""
    ports = ["--port", str(port), "--behind", str(behind)]
    return [str(Path(__file__)), *ports, *(f"--fault={fault}" for fault in faults), "--", *command]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--behind", type=int, required=True)
    parser.add_argument("--fault", action="append", default=[])
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    return asyncio.run(Proxy(f"http://127.0.0.1:{arguments.behind}", arguments.fault).run(arguments.port, arguments.command))


if __name__ == "__main__":
    raise SystemExit(main())

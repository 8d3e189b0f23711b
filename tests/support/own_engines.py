"""Real servers of the embedded engine for an eval backend, and a proxy that tells lies about one."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from aiohttp import web
from asyncrl import EnginePlace, EvalSet, RunFacts, SamplingParams
from asyncrl.evaluation.pin import OwnClient, OwnEngines, OwnEvalSets
from asyncrl.evaluation.sets import RunEvalSets
from asyncrl.host import Host
from asyncrl.plugins import discover, load
from asyncrl.rollout.connection import make_session
from asyncrl.rollout.group_sampler import GroupSampler
from asyncrl.rollout.pool import EnginePool
from asyncrl.testing.fakes import OneTurn, stand_in
from asyncrl.testing.models import vocab_size
from asyncrl.testing.sampling import make_prompt, make_sampler
from asyncrl.training.publication import free_port

RUN = RunFacts(batch_size=4, group_size=1, max_concurrent_samples=16, steps=6, max_new_tokens=8)
GREEDY = SamplingParams(8, temperature=0.0)


class TorchServer:
    """One server process, without anybody who restarts it."""

    def __init__(self, model: Path, folder: Path, *, port: int = 0, api_key: str = "") -> None:
        self.port = port or free_port("127.0.0.1")
        kind: Any = load(discover().pick("engine", "torch", "test"))
        place = EnginePlace(0, model, "127.0.0.1", self.port, "cpu", "float32", 0, folder / "server.txt", api_key)
        self.spec = kind(kind.Options(), RUN).engine_server(place)
        self.url = self.spec.url
        self._log = place.log_file.open("ab")
        self.process = subprocess.Popen(
            self.spec.argv, stdout=self._log, stderr=self._log, env={**os.environ, **self.spec.env}, start_new_session=True
        )

    def wait(self) -> TorchServer:
        """Wait until it answers."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            assert self.process.poll() is None, "the server ended"
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                    return self
            except OSError:
                time.sleep(0.1)
        raise AssertionError("the server did not answer")

    def call(self, path: str, body: Any) -> Any:
        data = None if body is None else orjson.dumps(body)
        with urllib.request.urlopen(urllib.request.Request(self.url + path, data), timeout=60) as answer:
            return orjson.loads(answer.read())

    def stop(self) -> None:
        """Have it stand still: it keeps its connections and answers nothing."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        self._log.close()


@asynccontextmanager
async def own_engines(
    specs: Sequence[Any], model: Path, *, load_timeout: float = 60.0, lost_timeout: float = 1.0
) -> AsyncIterator[OwnEngines]:
    """Yield the engines at these servers as an evaluator has them."""
    async with make_session() as session:
        clients = [
            OwnClient.of_spec(
                f"eval-engine-{index}",
                spec,
                session,
                vocab_size=vocab_size(model),
                request_timeout=60.0,
                update_timeout=load_timeout,
                control_timeout=load_timeout,
            )
            for index, spec in enumerate(specs)
        ]
        pool = EnginePool(clients, lost_timeout=lost_timeout, health_interval=0.5, health_failures=2)
        yield OwnEngines(clients, pool, must_pin=True)
        await pool.close()
        for client in clients:
            await client.close()


def eval_sets(engines: OwnEngines, *, prompts: int = 8, tokens: int = 8) -> OwnEvalSets:
    """Return a backend's view of one greedy set on these engines."""
    sets = (EvalSet("held-out", tuple(map(make_prompt_of_digits, range(prompts))), SamplingParams(tokens, temperature=0.0)),)

    def sampler(own: Any, one: EvalSet) -> GroupSampler:
        made = make_sampler(own, RUN)
        made.group_size, made.params = one.samples_per_prompt, one.params
        return made

    produce = Host([stand_in("producer", OneTurn, RUN)]).one("produce")
    runs = RunEvalSets(sets, engines, produce=produce, make_sampler=sampler, max_concurrent_samples=16)
    return OwnEvalSets(runs, engines)


def make_prompt_of_digits(number: int) -> Any:
    """A prompt of ids that any small vocabulary has."""
    prompt = make_prompt(number)
    return type(prompt)(prompt.prompt_id, prompt.token_ids % 10, prompt.data, prompt.source)


Lie = Callable[[str, dict[str, Any]], dict[str, Any]]


@asynccontextmanager
async def lying_proxy(url: str, lie: Lie) -> AsyncIterator[tuple[str, list[str]]]:
    """Yield the address of a proxy in front of a server, and the paths that were asked for. `lie` is given each path with the server's
    JSON and returns what the client gets."""
    asked: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        asked.append(request.path)
        body = await request.read()
        kind = {"Content-Type": request.content_type}
        async with session.request(request.method, url + request.path_qs, data=body, headers=kind) as answer:
            reply = await answer.json(content_type=None)
            return web.Response(
                body=orjson.dumps(lie(request.path, reply)), status=answer.status, content_type="application/json"
            )

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    port = free_port("127.0.0.1")
    async with aiohttp.ClientSession() as session:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield f"http://127.0.0.1:{port}", asked
        await runner.cleanup()

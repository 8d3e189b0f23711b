"""An engine's server in a process of its own that speaks SGLang's API and breaks one of its promises: `fake_server.py PORT MODEL BREAK`."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from http_engine import HttpEngine

SECONDS_A_TOKEN = 0.002


class FakeServer(HttpEngine):
    def __init__(self, port: int, model: Path, broken: str) -> None:
        super().__init__(vocab_size=64)
        self._port = port
        self.broken = broken
        self.weights = weights_of(model)
        self._asked = itertools.count()

    def _held(self, count: int) -> bool:
        return super()._held(count) and self.broken != "generates while paused"

    async def _generate(self, body: Any) -> Any:
        self.generated[body["rid"]] = 0  # it runs from now on, and can be aborted
        try:
            await asyncio.sleep(SECONDS_A_TOKEN * body["sampling_params"]["max_new_tokens"])
        finally:
            del self.generated[body["rid"]]
        answer = await super()._generate(body)
        if not isinstance(answer, dict):
            return answer
        if self.broken == "one token more" and body["sampling_params"]["max_new_tokens"] == 5:
            answer["output_ids"].append(0)
            answer["meta_info"]["output_token_logprobs"].append([-0.5, 0, None])
            answer["meta_info"]["weight_versions"][-1]["end"] += 1
        if self.broken == "greedy by chance" and body["sampling_params"]["temperature"] == 0:
            answer["output_ids"] = [(next(self._asked) + token) % 64 for token in answer["output_ids"]]
            answer["meta_info"]["output_token_logprobs"] = [[-0.5 - token, token, None] for token in answer["output_ids"]]
        return answer

    async def _do_pause_generation(self, body: Any) -> Any:
        await super()._do_pause_generation(body)
        if self.broken == "aborts at a pause":
            self._aborted.update(self.generated)

    async def _do_abort_request(self, body: Any) -> Any:
        return None if self.broken == "ignores aborts" else await super()._do_abort_request(body)

    async def _do_update_weights_from_disk(self, body: Any) -> Any:
        weights = self.weights if self.broken == "keeps its weights" else weights_of(Path(body["model_path"]))
        return self._serve(weights, body)


def weights_of(model: Path) -> str:
    return hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()


async def main(port: int, model: Path, broken: str) -> None:
    if broken == "does not start":
        sys.exit("no such flag")
    if broken == "outlives its owner" and "OWNER" not in os.environ:
        environment = {**os.environ, "OWNER": str(os.getpid())}
        subprocess.Popen([sys.executable, *sys.argv], env=environment, start_new_session=True)  # noqa: ASYNC220
        await asyncio.sleep(3600)
    await FakeServer(port, model, broken).start()
    while alive(int(os.environ.get("OWNER", os.getpid()))):  # noqa: ASYNC110
        await asyncio.sleep(0.2)
    await asyncio.sleep(5.0)  # long enough to be seen


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))

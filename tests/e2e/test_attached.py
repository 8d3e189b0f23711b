"""Runs on a server that runs already, as one that several runs use in turn: nothing of it is started, trusted or ended."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asyncrl import EnginePlace, RunFacts
from asyncrl.runtime import child
from asyncrl.testing.models import default_model
from asyncrl.training.publication import free_port
from asyncrl_torch import TorchEngine, TorchEngineOptions

pytestmark = pytest.mark.slow

KEY = "key-of-the-server"


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A server that requires a key and was started by nobody of the run. It speaks SGLang's API."""
    place = EnginePlace(
        0, default_model(), "127.0.0.1", free_port("127.0.0.1"), "cpu", "float32", 0, tmp_path / "server.txt", KEY
    )
    facts = RunFacts(batch_size=1, group_size=1, max_concurrent_samples=1, steps=1)
    spec = TorchEngine(TorchEngineOptions(), facts).engine_server(place)
    process = child.spawn(spec.argv, env=spec.env, log_file=place.log_file)
    try:
        deadline = time.monotonic() + 120
        while not answers(spec.url):
            assert process.poll() is None and time.monotonic() < deadline, place.log_file.read_text()
            time.sleep(0.1)
        yield spec.url
        assert process.poll() is None
    finally:
        child.end(process)


def answers(url: str) -> bool:
    try:
        return bool(told(url))
    except OSError:
        return False


def told(url: str) -> dict[str, Any]:
    request = urllib.request.Request(f"{url}/model_info", headers={"Authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return dict(json.loads(answer.read()))


@pytest.mark.minutes
@pytest.mark.timeout(1800)
@pytest.mark.long
def test_one_server_serves_one_run_after_another_each_from_its_own_weights_on(start: Any, url: str) -> None:
    flags = ("--engine", "sglang", "--engine.urls", url, "--steps", "2", "--eval-interval", "2")
    for name in ("first", "second"):  # the second finds the weights of the first, under the label of its last version
        run = start(*flags, name=name, env={"ASYNCRL_ENGINE_API_KEY": KEY})
        assert run.wait() == 0, run.output
        assert [record["version"] for record in run.evals()] == [0, 2]
        assert run.summary["staleness"]["mean"] >= 0
        assert told(url)["weight_version"] == "2"


def test_a_wrong_key_is_one_line(start: Any, url: str) -> None:
    run = start("--engine", "sglang", "--engine.urls", url, env={"ASYNCRL_ENGINE_API_KEY": "another"})
    assert run.wait() == 2, run.output
    assert f"engine.api_key: the server at {url} refuses the key (status 401)" in run.output.splitlines()[-1]
    assert "another" not in run.output

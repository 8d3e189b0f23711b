"""The page that teaches how to write an eval backend, run as it is written, against the service that it shows."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from papers import ROOT, blocks
from workshop import Workshop

PAGE = ROOT / "docs/plugins/eval.md"
SERVICE = "asyncrl-plugin-black-box/tests/service.py"


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """Where the page's service runs meanwhile, in a process of its own."""
    (source,) = [block.text for block in blocks(PAGE) if block.file == SERVICE]
    (tmp_path / "service.py").write_text(source)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = int(probe.getsockname()[1])
    process = subprocess.Popen([sys.executable, tmp_path / "service.py", str(free)])
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", free), 1).close()
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
        yield free
    finally:
        process.kill()
        process.wait()


@pytest.mark.minutes
@pytest.mark.timeout(1800)
@pytest.mark.long
def test_the_backend_is_written_tested_and_trained_with_as_its_page_says(tmp_path: Path, cache_dir: Path, port: int) -> None:
    """Field report 40."""
    workshop = Workshop(tmp_path / "workshop", cache_dir)
    workshop.follow(PAGE, new=(SERVICE,), instead={"127.0.0.1:8765": f"127.0.0.1:{port}"})
    (file,) = workshop.folder.glob("runs/*/evals.jsonl")
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(record["step"], record["version"], record["skipped"]) for record in records] == [(0, 0, ""), (2, 2, ""), (4, 4, "")]
    for record in records:
        result = record["sets"]["held-out"]
        assert (result["mean_reward"], result["failed"], result["version_mean"]) == (1.0, 0.25, record["version"])

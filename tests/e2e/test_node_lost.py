"""Nodes of a joined Ray cluster are lost: what was on them is placed on others, and the run goes on."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from live import PATIENT, VICTIMS, Run, processes_with

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1800)]

PATIENCE = 900.0
STEPS = 30
FLAGS = (
    *PATIENT,
    *(
        "--steps",
        str(STEPS),
        "--save-interval",
        "2",
        "--eval-interval",
        "0",
        "--bind",
        "0.0.0.0",
        "--publish-method",
        "broadcast",
    ),
    *("--batch-size", "4", "--group-size", "4", "--max-concurrent-samples", "16", "--filters", "", "--staleness", "none"),
)


class Nodes:
    """A cluster on this machine: a head on which nothing that needs a CPU is placed, and nodes that come and go."""

    def __init__(self, mark: str, temp_dir: str) -> None:
        from ray.cluster_utils import Cluster

        self.mark = mark
        self.cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, "temp_dir": temp_dir}
        )

    def add(self, *cpus: int) -> None:
        """Add a node with so many CPUs, or several."""
        for number in cpus:
            self.cluster.add_node(num_cpus=number)

    def processes(self, kind: str) -> list[int]:
        """Processes of a kind in `VICTIMS` on all nodes."""
        return [pid for pid, command in processes_with(self.mark) if VICTIMS[kind](command)]

    def lose_that_of(self, kind: str) -> None:
        """Lose the node on which the only process of that kind is."""
        (pid,) = self.processes(kind)
        above = {parent.pid for parent in psutil.Process(pid).parents()}
        (node,) = (node for node in self.cluster.worker_nodes if node.all_processes["raylet"][0].process.pid in above)
        self.cluster.remove_node(node, allow_graceful=False)


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    mark = f"mark-{secrets.token_hex(16)}"
    for name, value in {"ASYNCRL_TEST_MARK": mark, "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_worker_niceness": "0"}.items():
        monkeypatch.setenv(name, value)
    with tempfile.TemporaryDirectory(
        prefix="n-", dir="/tmp", ignore_cleanup_errors=True
    ) as temp_dir:  # short: sockets are made in it
        nodes = Nodes(mark, temp_dir)
        yield nodes
        nodes.cluster.shutdown()


def test_what_was_on_a_lost_node_is_placed_on_another(start: Any, nodes: Nodes) -> None:
    """First the node of trainer and engine, then that of the engine alone, then that of the trainer alone."""
    nodes.add(2)
    run: Run = start(*FLAGS, "--ray-address", nodes.cluster.address, patience=PATIENCE)
    log = run.directory / "log.txt"

    def goes_on(begun: int, servers: int) -> None:
        """Wait until the training loop has begun so often, there were so many new servers, and another step is done."""

        def there() -> bool:
            told = log.read_text()
            return told.count(" parameters\n") == begun and told.count("has a new server") == servers

        run.wait_until(there, f"loop {begun} with server {servers}")
        run.wait_for_step(run.last_step() + 1)

    run.wait_for_step(3)
    nodes.lose_that_of("trainer rank")
    nodes.add(1, 1)
    goes_on(2, 1)
    nodes.lose_that_of("engine")
    nodes.add(1)
    goes_on(2, 2)
    server = nodes.processes("engine")
    nodes.lose_that_of("trainer rank")
    nodes.add(1)
    goes_on(3, 2)
    assert nodes.processes("engine") == server
    assert run.wait() == 0, run.output
    assert "Traceback" not in run.output
    assert run.summary["restarts"]["trainer"] == 2
    assert [line["step"] for line in run.metrics()] == list(range(1, STEPS + 1))
    assert run.left_behind() == []
    assert [nodes.processes(kind) for kind in VICTIMS] == [[]] * len(VICTIMS)

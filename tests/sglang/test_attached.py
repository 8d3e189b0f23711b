"""A run on a server that somebody else started: it is as usable afterwards as it was before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from asyncrl.testing.models import default_model
from live import DEMO, PATIENT, begin
from servers import Server


@pytest.fixture
def server(started, tmp_path, models) -> Iterator[Server]:
    """It serves the demo's model, with weights that are none of the run's."""
    for other in started:
        other.end()  # there are never more than two servers
    server = Server("attached", default_model(), tmp_path)
    try:
        server.wait()
        server.reset(models.b)
        yield server
    finally:
        server.end()


def test_an_attached_server_goes_on_when_the_run_ends(server, tmp_path):
    """It has the weights of the run's last version at last."""
    way = ("--publish-method", "broadcast", "--publish-mode", "in_place", "--steps", "2", "--eval-interval", "2")
    where = ("--runs-dir", str(tmp_path / "runs"), "--name", "run", "--engine", "sglang", "--engine.urls", server.url)
    run = begin("train", str(DEMO), *PATIENT, *where, *way, directory=tmp_path / "runs" / "run", cwd=tmp_path, patience=1200)
    try:
        assert run.wait() == 0, run.output
        assert [record["version"] for record in run.evals()] == [0, 2]
        assert run.metrics()[0]["values"]["trainer/fsdp/largest_logprob_difference_by_age/0"] < 1e-3  # no publication yet
        assert run.left_behind() == []
    finally:
        run.clear()
    assert server.call("/model_info")["weight_version"] == "2"
    assert all(load["num_running_reqs"] + load["num_waiting_reqs"] == 0 for load in server.call("/v1/loads")["loads"])
    answer = server.call("/generate", {"input_ids": [3, 4, 5], "sampling_params": {"max_new_tokens": 8, "ignore_eos": True}})
    assert len(answer["output_ids"]) == 8, "a paused one would not answer"

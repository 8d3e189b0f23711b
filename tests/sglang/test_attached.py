"""A run on a server that somebody else started: it is as usable afterwards as it was before."""

from __future__ import annotations

import pytest
from live import DEMO, PATIENT, begin


@pytest.mark.parametrize(("method", "mode"), [("broadcast", "in_place"), pytest.param("disk", "retract", marks=pytest.mark.long)])
def test_an_attached_server_goes_on_when_the_run_ends(pair, models, tmp_path, method, mode):
    """It has other weights at first, and those of the run's last version at last."""
    server = pair[0]
    server.reset(models.b)
    way = ("--publish-method", method, "--publish-mode", mode, "--model", str(models.demo))
    where = ("--runs-dir", str(tmp_path / "runs"), "--name", "run", "--engine", "sglang", "--engine.urls", server.url)
    flags = (str(DEMO), *PATIENT, *where, *way, "--steps", "2", "--eval-interval", "2")
    run = begin("train", *flags, directory=tmp_path / "runs" / "run", cwd=tmp_path, patience=900)
    try:
        assert run.wait() == 0, run.output
        assert [record["version"] for record in run.evals()] == [0, 2]
        differences = [line["values"]["trainer/fsdp/largest_logprob_difference_by_age/0"] for line in run.metrics()]
        assert 0 < max(differences) < 1e-3
        assert run.left_behind() == []
    finally:
        run.clear()
    assert server.call("/model_info")["weight_version"] == "2"
    assert all(load["num_running_reqs"] + load["num_waiting_reqs"] == 0 for load in server.call("/v1/loads")["loads"])
    answer = server.call(
        "/generate", {"input_ids": [3, 4, 5], "sampling_params": {"max_new_tokens": 8}}
    )  # a paused one would wait
    assert len(answer["output_ids"]) == 8
    server.reset(models.a)  # it may join another weight group, and be updated

"""`asyncrl eval` on real servers: the record of a run's own point again, whatever the backend; and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_distributions import install

SAMPLED = ("--task.eval-samples-per-prompt", "4", "--task.num-eval", "32")


@pytest.fixture
def evaluate(launch: Any, tmp_path: Path) -> Any:
    """Return a function that starts `asyncrl eval`, results below the test's own directory."""

    def begin(checkpoint: Path, *flags: str, name: str = "result") -> Any:
        runs = tmp_path / "runs"
        where = ("--name", name, "--runs-dir", str(runs))
        return launch("eval", str(checkpoint), *where, *flags, directory=runs / name)

    return begin


@pytest.fixture(scope="session")
def trained_model(cache_dir: Path) -> Path:
    """The demo's model, made if it is not in the cache."""
    code = (
        "import sys; from pathlib import Path; from asyncrl import RunFacts\n"
        "from asyncrl_sort_digits import SortDigits, SortDigitsOptions\n"
        "print(SortDigits(SortDigitsOptions(), RunFacts(1, 1, 1, 1)).task_model(Path(sys.argv[1])))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(cache_dir)], capture_output=True, text=True, check=True, timeout=240)
    return Path(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_a_hugging_face_directory_is_evaluated_with_several_sets(evaluate, trained_model: Path) -> None:
    done = evaluate(trained_model, "--task", "sort-digits", *SAMPLED)
    assert done.wait() == 0, done.output
    (record,) = done.evals()
    greedy, sampled = record["sets"]["held-out"], record["sets"]["held-out-sampled"]
    assert (record["step"], record["skipped"], greedy["num_samples"], sampled["num_samples"]) == (0, "", 32, 128)
    assert list(sampled["pass_at"]) == ["1", "2", "4"]
    assert sampled["pass_at"]["1"] == pytest.approx(sampled["mean_reward"])
    assert sampled["pass_at"]["1"] <= sampled["pass_at"]["2"] <= sampled["pass_at"]["4"]
    assert "held-out-sampled" in done.output and "pass@4" in done.output
    assert (done.directory / "config.toml").exists()
    assert done.left_behind() == []


@pytest.mark.minutes
@pytest.mark.timeout(1800)
def test_every_backend_gives_the_record_of_the_runs_own_point_again(start, evaluate) -> None:
    run = start("--steps", "2", "--eval-interval", "2", "--save-interval", "2", "--no-eval-before-training")
    assert run.wait() == 0, run.output
    (own,) = run.evals()
    checkpoint = run.directory / "checkpoints/step-2"
    for backend in ("shared", "fleet", "sglang"):
        done = evaluate(checkpoint, "--eval", backend, "--json", name=backend)
        assert done.wait() == 0, done.output
        printed = json.loads(done.output.splitlines()[-1])
        (record,) = done.evals()
        assert (record["step"], record["version"], record["sets"]) == (2, own["version"], own["sets"])
        assert printed["sets"] == record["sets"] and printed["checkpoint"] == str(checkpoint / "model")
        assert done.left_behind() == []


@pytest.mark.minutes
def test_a_set_that_does_not_exist_is_refused_and_leaves_no_directory(evaluate, trained_model: Path) -> None:
    done = evaluate(trained_model, "--task", "sort-digits", "--eval-sets", "hidden")
    assert done.wait() == 2
    assert "has no eval set 'hidden' (it has held-out)" in done.output
    assert not done.directory.exists()
    assert done.left_behind() == []


@pytest.mark.minutes
@pytest.mark.long
def test_a_run_that_shall_evaluate_a_set_that_does_not_exist_is_refused_before_training(start) -> None:
    run = start("--eval-sets", "hidden")
    assert run.wait() == 2
    assert "--eval-sets: task plugin 'sort-digits'" in run.output and "has no eval set 'hidden' (it has held-out)" in run.output
    assert "warning" not in run.output
    assert not run.directory.exists()
    assert run.left_behind() == []


@pytest.mark.minutes
@pytest.mark.long
def test_a_server_that_is_none_is_a_skip_with_exit_code_1(evaluate, trained_model: Path) -> None:
    flags = ("--eval", "sglang", "--eval.url", "http://127.0.0.1:9", "--start-timeout", "60")
    done = evaluate(trained_model, "--task", "sort-digits", *flags)
    assert done.wait() == 1, done.output
    (record,) = done.evals()
    assert record["skipped"] == "unhealthy" and "http://127.0.0.1:9" in record["detail"]["why"]
    assert "skipped: unhealthy: " in done.output
    assert done.left_behind() == []


@pytest.mark.minutes
@pytest.mark.long
def test_ctrl_c_leaves_now_and_leaves_nothing(evaluate, trained_model: Path) -> None:
    done = evaluate(trained_model, "--task", "sort-digits", "--eval", "sglang", "--eval.url", "http://127.0.0.1:9")
    done.wait_until(lambda: (done.directory / "logs").exists() or (done.directory / "log.txt").exists(), "the log")
    done.process.send_signal(signal.SIGINT)
    assert done.wait() == 130, done.output
    assert done.left_behind() == []


@pytest.mark.minutes
@pytest.mark.long
def test_nothing_but_the_record_is_on_stdout_also_when_the_evaluator_dies(tmp_path: Path, trained_model: Path) -> None:
    install(tmp_path / "site", "ending", {"asyncrl.evals": {"ending": "ending_eval_plugin:Ending"}})
    places = os.pathsep.join([str(tmp_path / "site"), str(Path(__file__).parents[1] / "support")])
    command = [sys.executable, "-m", "asyncrl", "eval", str(trained_model), "--task", "sort-digits", "--eval", "ending", "--json"]
    command += ["--runs-dir", str(tmp_path / "runs")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=os.environ | {"PYTHONPATH": places})
    record = json.loads(done.stdout)
    assert (done.returncode, record["skipped"]) == (1, "crashed"), done.stderr
    assert "its process died" in record["detail"]["why"]

"""`asyncrl train` for real: generation, training and publication between separate processes."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.slow

SUMMARY_KEYS = {
    "outcome", "steps", "wall_seconds", "eval", "books", "tokens", "busy_seconds", "seconds", "publications", "evaluations", "staleness",
    "step_over_limit", "restarts",
}  # fmt: skip


def check_finished(run, steps: int) -> None:
    assert run.wait() == 0, run.output
    summary = run.summary
    assert set(summary) == SUMMARY_KEYS
    assert summary["outcome"] == "completed"
    assert summary["steps"] == steps
    books = summary["books"]
    assert books["issued"] == books["trained"] + books["unfinished"] + sum(books["dropped"].values())
    assert books["trained"] == steps * 16
    assert [line["step"] for line in run.metrics()] == list(range(1, steps + 1))
    assert run.left_behind() == []


def test_a_run_trains_publishes_evaluates_and_leaves_its_directory(start) -> None:
    """Field report 7: the books balance at the end."""
    run = start("--steps", "4", "--eval-interval", "2", "--save-interval", "2")
    check_finished(run, 4)
    assert [(record["step"], record["version"], record["skipped"]) for record in run.evals()] == [
        (0, 0, ""),
        (2, 2, ""),
        (4, 4, ""),
    ]
    assert run.summary["staleness"]["max"] <= 4
    assert (run.directory / "config.toml").exists()
    assert (run.directory / "log.txt").exists()
    for step in (2, 4):
        assert (run.directory / f"checkpoints/step-{step}/model/model.safetensors").exists()
    values = run.metrics()[-1]["values"]
    assert values["run/weight_version"] == 4
    assert [line["step"] for line in run.lines("steps.jsonl")] == [1, 2, 3, 4]
    trace, books = run.lines("trace.jsonl"), run.summary["books"]
    assert len({line["prompt_id"] for line in trace}) == len(trace) >= books["trained"] + sum(books["dropped"].values())
    assert all(len(line[name]) == 16 for line in trace for name in ("tokens", "seconds", "rewards"))


@pytest.mark.minutes
@pytest.mark.long
def test_the_written_configuration_runs_again(start) -> None:
    first = start("--steps", "1", "--eval-interval", "0", name="first")
    check_finished(first, 1)
    second = start(file=first.directory / "config.toml", name="second")
    check_finished(second, 1)


def test_broadcast_to_two_engines_from_two_ranks_with_requests_frozen(start) -> None:
    run = start(
        *("--steps", "3", "--eval-interval", "0", "--num-engines", "2", "--trainer-ranks", "2"),
        *("--publish-method", "broadcast", "--publish-mode", "in_place", "--trace-groups", "5"),
    )
    check_finished(run, 3)
    assert run.metrics()[-1]["values"]["run/weight_version"] == 3
    assert len(run.lines("trace.jsonl")) == 5


def test_lockstep_is_on_policy(start) -> None:
    """Field reports 4 and 5: no lag, and the ratio of trainer to engine log-probabilities is 1 up to numerics."""
    run = start("--steps", "3", "--eval-interval", "0", "--scheduler", "lockstep", "--staleness.max-staleness", "0")
    check_finished(run, 3)
    assert run.summary["staleness"] == {"mean": 0.0, "max": 0}
    for line in run.metrics():
        assert abs(line["values"]["trainer/fsdp/kl_k1"]) < 1e-4, line


@pytest.mark.minutes
@pytest.mark.long
def test_a_bound_of_0_makes_progress_without_lockstep(start) -> None:
    """Field report 4."""
    run = start("--steps", "2", "--eval-interval", "0", "--staleness.max-staleness", "0")
    check_finished(run, 2)
    assert run.summary["staleness"]["max"] == 0


@pytest.mark.minutes
@pytest.mark.long
def test_users_own_prompts_train_from_json_lines(start, tmp_path, cache_dir) -> None:
    first = start("--steps", "1", "--eval-interval", "0", name="first")
    assert first.wait() == 0, first.output
    model = next(cache_dir.glob("**/config.json")).parent
    rows = [{"question": f"{a}{b}{c}=", "answer": "".join(sorted(f"{a}{b}{c}"))} for a in "123" for b in "456" for c in "789"]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "mine.toml").write_text(
        f"""
model = "{model}"
steps = 2
batch_size = 4
group_size = 4
max_new_tokens = 7
eval_interval = 2
[task]
name = "jsonl"
path = "train.jsonl"
prompt_field = "question"
scorer = "exact"
[task.eval]
all = "train.jsonl"
[trainer]
name = "fsdp"
old_policy = "engine"
"""
    )
    run = start(file=tmp_path / "mine.toml", name="mine")
    assert run.wait() == 0, run.output
    assert run.summary["steps"] == 2
    assert set(run.summary["eval"]) == {"all"}
    assert run.left_behind() == []

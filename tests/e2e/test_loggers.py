"""A real run with the loggers that are not on by default: what its records say is what W&B and TensorBoard get."""

from __future__ import annotations

from typing import Any

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb_files import read_offline

KEY = "k3yofauserthatnobodymayseeinanyfilexxxxx"


def test_metrics_evals_and_completions_of_a_run_reach_wandb_and_tensorboard(start: Any) -> None:
    """Field report 25."""
    run = start(
        *("--steps", "2", "--eval-interval", "1", "--task.num-eval", "8", "--batch-size", "4", "--group-size", "4"),
        *("--loggers", "console,jsonl,wandb,tensorboard", "--loggers.wandb.mode", "offline"),
        env={"WANDB_API_KEY": KEY, "WANDB_PROJECT": "from-the-environment"},
    )
    assert run.wait() == 0, run.output
    written, events = read_offline(run.directory), EventAccumulator(str(run.directory)).Reload()
    assert (written.project, written.name, written.exit_code) == ("from-the-environment", "run", 0)
    assert written.config["steps"] == 2
    counted = 0
    for axis in ("train_step", "weight_version", "eval_step", "wall_seconds"):
        wanted: dict[str, list[tuple[float, float]]] = {}
        for line in run.metrics(axis):
            for name, value in line["values"].items():
                wanted.setdefault(name, []).append((line["step"], value))
        for name, points in wanted.items():
            assert written.series(name, axis) == points, name
            assert written.axes[name] == axis, name
            assert [event.step for event in events.Scalars(name)] == [round(step) for step, _ in points], name
            counted += 1
    assert counted > 40

    assert [step for step, _ in written.series("eval/reward/held-out", "eval_step")] == [0, 1, 2]
    assert [step for step, _ in written.series("eval/samples", "eval_step")] == [0, 1, 2]
    samples = run.evals()[0]["sets"]["held-out"]["samples"]
    assert len(samples) == 4
    assert all(sample["prompt"].startswith("<bos>") and sample["prompt"].endswith("=") for sample in samples)
    texts = events.Tensors("eval/samples/held-out/0")
    assert [event.step for event in texts] == [0, 1, 2]
    assert samples[0]["completion"] in texts[0].tensor_proto.string_val[0].decode()

    for path in run.directory.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path
    assert run.left_behind() == []

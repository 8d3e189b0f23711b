"""Running totals of a run, and the `summary.json` made of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from asyncrl.training.loop import StepTimes


@dataclass
class Totals:
    """What the summary needs. Seconds; `engines` is the mean over engines of the time with a request in flight.

    `engines_in_eval` is the part of it that shared evaluations used: it is no generation for training. `paused` is the part of the
    publications in which the engines stood still. `evaluations` came after a step. `restarts` of the trainer, and what was trained and
    generated in vain because of them.
    """

    steps: int = 0
    step_seconds: float = 0.0
    wait: float = 0.0
    train: float = 0.0
    publish: float = 0.0
    paused: float = 0.0
    checkpoint: float = 0.0
    evaluation: float = 0.0
    publications: int = 0
    evaluations: int = 0
    trainer: float = 0.0
    engines: float = 0.0
    engines_in_eval: float = 0.0
    tokens_generated: int = 0
    books: dict[str, Any] = field(default_factory=dict)
    evals: dict[str, dict[str, float]] = field(default_factory=dict)
    restarts: int = 0
    lost_steps: int = 0
    lost_tokens: int = 0

    @property
    def engines_while_training(self) -> float:
        return self.engines - self.engines_in_eval

    def go_back(self, earlier: Totals) -> Totals:
        """Return the totals of a run that goes on from where they were `earlier`, because its trainer was lost."""
        return replace(
            earlier,
            restarts=self.restarts + 1,
            lost_steps=self.lost_steps + max(0, self.steps - earlier.steps),
            lost_tokens=self.lost_tokens + self.tokens_generated - earlier.tokens_generated,
        )

    def add_step(self, times: StepTimes, trainer_busy: float) -> None:
        self.steps += 1
        self.step_seconds += times.total - times.evaluation
        self.trainer += trainer_busy
        self.wait += times.wait
        self.train += times.train
        self.publish += times.publish
        self.checkpoint += times.checkpoint
        self.evaluation += times.evaluation

    def add_eval(self, name: str, reward: float) -> None:
        self.evals.setdefault(name, {"first": reward})["last"] = reward

    def summary(self, outcome: str, wall_seconds: float, error: str) -> dict[str, Any]:
        """Return the summary. `step_over_limit` is the mean step time over what the slower side needs for a step; `seconds` are
        means over the steps, by part of a step. A step is the sum of its parts without the evaluation, and `paused` is a part of
        `publish`."""
        limit = max(self.trainer, self.engines_while_training)
        books = {key: self.books.get(key, 0) for key in ("issued", "trained", "dropped", "unfinished")}
        books["dropped"] = books["dropped"] or {}
        return {
            "outcome": outcome,
            **({"error": error} if error else {}),
            "steps": self.steps,
            "wall_seconds": round(wall_seconds, 3),
            "eval": self.evals,
            "books": books,
            "tokens": self.books.get("tokens", {"trained": 0, "dropped": 0, "unfinished": 0}),
            "busy_seconds": {"trainer": round(self.trainer, 3), "engines": round(self.engines_while_training, 3)},
            "seconds": {
                name: round(total / max(self.steps, 1), 6)
                for name, total in {
                    "step": self.step_seconds,
                    "wait": self.wait,
                    "train": self.train,
                    "publish": self.publish,
                    "paused": self.paused,
                    "checkpoint": self.checkpoint,
                    "evaluation": self.evaluation,
                }.items()
            },
            "restarts": {"trainer": self.restarts, "lost_steps": self.lost_steps, "lost_tokens": self.lost_tokens},
            "publications": self.publications,
            "evaluations": self.evaluations,
            "staleness": self.books.get("staleness", {"mean": 0.0, "max": 0}),
            "step_over_limit": round(self.step_seconds / limit, 3) if limit > 0 else 0.0,
        }
